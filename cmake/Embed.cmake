# SPDX-License-Identifier: Apache-2.0
# kvr_embed(TARGET FILE SYMBOL): the text of a file is `extern const char SYMBOL[]` in the target, ended by a NUL, without its first line,
# which is the licence's; SYMBOL_tag[] is another one for another text.
# kvr_openapi(TARGET FILE SYMBOL): the same of the OpenAPI document of a port, which FILE (YAML) and what all ports share make
# (openapi_json.c). As JSON it is in the build folder, too, at the place of FILE.
#
# The text becomes a C file of the build, at the place in the build folder that FILE has in the tree, so that its object is one of FILE's
# folder. This file is also the script that writes it.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(kvr_embed target file symbol)
    get_filename_component(file ${file} ABSOLUTE)
    file(RELATIVE_PATH place ${CMAKE_SOURCE_DIR} ${file})
    set(source ${CMAKE_BINARY_DIR}/${place}.c)
    set(script ${CMAKE_CURRENT_FUNCTION_LIST_FILE})
    add_custom_command(OUTPUT ${source} DEPENDS ${file} ${script} VERBATIM
                       COMMAND ${CMAKE_COMMAND} -DFILE=${file} -DSOURCE=${source} -DSYMBOL=${symbol} -P ${script})
    target_sources(${target} PRIVATE ${source})
  endfunction()

  set(KVR_OPENAPI_SHARED ${CMAKE_SOURCE_DIR}/src/net/http/openapi.yaml)
  function(kvr_openapi target file symbol)
    if(NOT TARGET openapi_json)
      add_executable(openapi_json ${CMAKE_SOURCE_DIR}/cmake/openapi_json.c)
      target_link_libraries(openapi_json PRIVATE PkgConfig::YAML)
    endif()
    get_filename_component(file ${file} ABSOLUTE)
    file(RELATIVE_PATH place ${CMAKE_SOURCE_DIR} ${file})
    string(REGEX REPLACE "yaml$" "json" json ${CMAKE_BINARY_DIR}/${place})
    get_filename_component(folder ${json} DIRECTORY)
    set(script ${CMAKE_CURRENT_FUNCTION_LIST_FILE})
    add_custom_command(OUTPUT ${json} ${json}.c DEPENDS openapi_json ${KVR_OPENAPI_SHARED} ${file} ${script} VERBATIM
                       COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
                       COMMAND openapi_json ${PROJECT_VERSION} ${json} ${KVR_OPENAPI_SHARED} ${file}
                       COMMAND ${CMAKE_COMMAND} -DFILE=${json} -DSOURCE=${json}.c -DSYMBOL=${symbol} -P ${script})
    target_sources(${target} PRIVATE ${json}.c)
  endfunction()
  return()
endif()

file(READ ${FILE} text)
if(NOT FILE MATCHES "\\.json$") # which is made by the build
  string(FIND "${text}" "\n" end)
  string(SUBSTRING "${text}" 0 ${end} licence)
  if(NOT licence MATCHES "SPDX-License-Identifier: ")
    message(FATAL_ERROR "${FILE}: the first line has no licence")
  endif()
  math(EXPR end "${end} + 1")
  string(SUBSTRING "${text}" ${end} -1 text)
endif()
string(SHA256 tag "${text}")
string(SUBSTRING ${tag} 0 16 tag)
string(HEX "${text}" text)
string(REGEX REPLACE "(..)" "\\\\x\\1" text "${text}")
file(WRITE ${SOURCE} "extern const char ${SYMBOL}[], ${SYMBOL}_tag[];\nconst char ${SYMBOL}[] = \"${text}\", ${SYMBOL}_tag[] = \"${tag}\";\n")
