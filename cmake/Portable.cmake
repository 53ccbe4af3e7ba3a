# SPDX-License-Identifier: Apache-2.0
# The program for a folder of its own (scripts/bundle.sh): the libraries that it needs lie in lib/ beside it. libzmq and the C++ library are
# linked in, so that no newer C++ library than an old system has is asked for; libzmq's own needs are read from the shared one. Without a
# libzmq.a there is no such program.
find_library(KVR_ZMQ_STATIC libzmq.a)
if(NOT KVR_ZMQ_STATIC)
  return()
endif()
add_executable(kvroute_portable EXCLUDE_FROM_ALL $<TARGET_OBJECTS:kvroute_bin> $<TARGET_OBJECTS:kvroute_core> $<TARGET_OBJECTS:kvr_wire>
               $<TARGET_OBJECTS:kvr_net> $<TARGET_OBJECTS:kvr_token> $<TARGET_OBJECTS:kvr_app> $<TARGET_OBJECTS:kvr_cli>)
execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${pkgcfg_lib_ZMQ_zmq} OUTPUT_VARIABLE needs)
string(REGEX MATCHALL "NEEDED +[^\n]+" needs "${needs}")
list(TRANSFORM needs REPLACE "NEEDED +" "-l:")
list(FILTER needs EXCLUDE REGEX "lib(stdc\\+\\+|gcc_s|m|c)\\.so")
target_link_libraries(kvroute_portable PRIVATE Threads::Threads m PkgConfig::UV PkgConfig::SSL ${KVR_ZMQ_STATIC} ${needs} PkgConfig::SIMDJSON
                      PkgConfig::YAML PkgConfig::CARES ${KVR_EXT_PROC_LIBRARIES} ${MSGPUCK_LIBRARY} Llhttp::Llhttp ${CMAKE_DL_LIBS})
if(KVR_NATS)
  target_link_libraries(kvroute_portable PRIVATE PkgConfig::NATS)
endif()
target_link_options(kvroute_portable PRIVATE ${KVR_ACROSS_FILES} -s -static-libstdc++ -Wl,--exclude-libs,ALL,--disable-new-dtags)
set_target_properties(kvroute_portable PROPERTIES LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable OUTPUT_NAME kvroute
                      BUILD_RPATH $ORIGIN/lib)
