# SPDX-License-Identifier: Apache-2.0
# llhttp, either as a library with a header (libllhttp-dev) or as the C sources that node-llhttp has, installed or in build/llhttp
# (scripts/deps.sh).
# Defines the target Llhttp::Llhttp.
find_path(LLHTTP_INCLUDE_DIR llhttp.h PATHS /usr/include /usr/share/include ${PROJECT_SOURCE_DIR}/build/llhttp/include PATH_SUFFIXES llhttp)
find_library(LLHTTP_LIBRARY llhttp)
find_path(LLHTTP_SOURCE_DIR llhttp.c PATHS /usr/share/llhttp ${PROJECT_SOURCE_DIR}/build/llhttp/llhttp NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
if(NOT LLHTTP_INCLUDE_DIR OR NOT (LLHTTP_LIBRARY OR LLHTTP_SOURCE_DIR))
  message(FATAL_ERROR "llhttp is missing: scripts/deps.sh build brings it (libllhttp-dev, or the sources of node-llhttp)")
endif()
find_package_handle_standard_args(Llhttp REQUIRED_VARS LLHTTP_INCLUDE_DIR)
if(NOT TARGET Llhttp::Llhttp)
  if(LLHTTP_LIBRARY)
    add_library(llhttp_lib INTERFACE)
    target_link_libraries(llhttp_lib INTERFACE ${LLHTTP_LIBRARY})
    target_include_directories(llhttp_lib SYSTEM INTERFACE ${LLHTTP_INCLUDE_DIR})
    add_library(Llhttp::Llhttp ALIAS llhttp_lib)
  else()
    add_library(llhttp_sources STATIC ${LLHTTP_SOURCE_DIR}/llhttp.c ${LLHTTP_SOURCE_DIR}/http.c
                ${LLHTTP_SOURCE_DIR}/api.c)
    target_compile_options(llhttp_sources PRIVATE -w)
    # Off by default before llhttp 9, which is always strict.
    target_compile_definitions(llhttp_sources PUBLIC LLHTTP_STRICT_MODE=1)
    target_include_directories(llhttp_sources SYSTEM PUBLIC ${LLHTTP_INCLUDE_DIR})
    add_library(Llhttp::Llhttp ALIAS llhttp_sources)
  endif()
endif()
mark_as_advanced(LLHTTP_INCLUDE_DIR LLHTTP_LIBRARY LLHTTP_SOURCE_DIR)
