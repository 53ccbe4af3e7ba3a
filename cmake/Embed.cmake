# SPDX-License-Identifier: Apache-2.0
# kvr_embed(TARGET FILE SYMBOL): the text of a file is `extern const char SYMBOL[]` in the target, ended by a NUL, without its first line,
# which is the licence's; SYMBOL_tag[] is another one for another text.
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
  return()
endif()

file(READ ${FILE} text)
string(FIND "${text}" "\n" end)
string(SUBSTRING "${text}" 0 ${end} licence)
if(NOT licence MATCHES "SPDX-License-Identifier: ")
  message(FATAL_ERROR "${FILE}: the first line has no licence")
endif()
math(EXPR end "${end} + 1")
string(SUBSTRING "${text}" ${end} -1 text)
string(SHA256 tag "${text}")
string(SUBSTRING ${tag} 0 16 tag)
string(HEX "${text}" text)
string(REGEX REPLACE "(..)" "\\\\x\\1" text "${text}")
file(WRITE ${SOURCE} "extern const char ${SYMBOL}[], ${SYMBOL}_tag[];\nconst char ${SYMBOL}[] = \"${text}\", ${SYMBOL}_tag[] = \"${tag}\";\n")
