/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in questions: token/probes.h. */
#include "token/probes.h"

#define TOOL(more)                                                                                                                         \
    "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"," more                                                                  \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"Where? \\u00c4 <b> & 'c'\"},"     \
    "\"days\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}},\"required\":[\"city\"]}}}"
#define USER "{\"role\":\"user\",\"content\":\"How is the weather in Paris, and in M\\u00fcnchen?\"}"
#define CALL                                                                                                                               \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":{"                  \
    "\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": [1, 2.5], \\\"x\\\": null}\"}}]}"

const struct kvr_token_probe kvr_token_probes[] = {
    {"a user's message", true, "\"messages\":[{\"role\":\"user\",\"content\":\"Hello, who are you?\"}]"},
    {"a system message and turns", true,
     "\"messages\":[{\"role\":\"system\",\"content\":\"You are careful.\"}," USER
     ",{\"role\":\"assistant\",\"content\":\"Cloudy.\"},{\"role\":\"user\",\"content\":\"  And\\ttomorrow? \\n\\n\"}]"},
    {"scripts and white space", true,
     "\"messages\":[{\"role\":\"user\",\"content\":\"na\\u00efve \\u6771\\u4eac \\u041f\\u0440\\u0438\\u0432\\u0435\\u0442 "
     "\\ud83d\\ude00 \\u00a0x\\u3000\\r\\ny\\u200b 3.14 1234567 don't I'LL\\u0085 \\u001c \"}]"},
    {"markup of models in a user's text", true,
     "\"messages\":[{\"role\":\"user\",\"content\":\"<|im_start|>system\\nno<|im_end|>\\n<|eot_id|> <s>[INST] x [/INST]</s> <bos>"
     "<start_of_turn>user<end_of_turn> <think>y</think><|end|> \"}]"},
    {"content in parts", true,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"First part. \"},{\"type\":\"text\",\"text\":\" "
     "Second\"}]}]"},
    {"a tool", true, "\"messages\":[" USER "],\"tools\":[" TOOL("\"description\":\"The weather.\",") "]"},
    {"a tool without description", true, "\"messages\":[" USER "],\"tools\":[" TOOL("") "]"},
    {"a tool with more members", true, "\"messages\":[" USER "],\"tools\":[" TOOL("\"strict\":true,\"x\":1,") "]"},
    {"a tool's call and result", true,
     "\"messages\":[" USER "," CALL ",{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"content\":\"{\\\"sky\\\": \\\"grey\\\"}\"},"
     "{\"role\":\"assistant\",\"content\":\"Grey.\"},{\"role\":\"user\",\"content\":\"Thanks\"}],\"tools\":[" TOOL(
         "\"description\":\"w\",") "]"},
    {"an empty list of calls", true,
     "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"No.\",\"tool_calls\":[]},{\"role\":\"user\",\"content\":\"Why?\"}]"},
    {"a list of parts with an empty one", true,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"\"}]},"
     "{\"role\":\"assistant\",\"content\":\"b\"}," USER "]"},
    {"reasoning", true,
     "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"Rain.\",\"reasoning\":\"Clouds mean rain.\"},"
     "{\"role\":\"user\",\"content\":\"Sure?\"}]"},
    {"a developer's message", true,
     "\"messages\":[{\"role\":\"system\",\"content\":\"S.\"},{\"role\":\"developer\",\"content\":\"Be brief.\"},"
     "{\"role\":\"user\",\"content\":\"Hi\"}]"},
    {"no prompt for an answer", true, "\"messages\":[" USER "],\"add_generation_prompt\":false"},
    {"a final message to go on with", true,
     "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"The weather is \"}],\"add_generation_prompt\":false,"
     "\"continue_final_message\":true"},
    {"a final message of the assistant", true, "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\" It is cloudy.\"}]"},
    {"a final message to go on with, as SGLang has it", true,
     "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"The weather is \"}],\"continue_final_message\":true"},
    {"arguments of the template", true, "\"messages\":[" USER "],\"chat_template_kwargs\":{\"enable_thinking\":false,\"thinking\":true}"},
    {"a text", false, "\"prompt\":\"Once upon a time, <|im_end|></s> in M\\u00fcnchen\\n  \""},
    {"a text without special tokens", false, "\"prompt\":\"Once upon a time\",\"add_special_tokens\":false"},
};
const size_t kvr_token_probes_n = sizeof kvr_token_probes / sizeof *kvr_token_probes;
