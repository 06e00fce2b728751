"""Answers as models write them, each with its source, and what is in them."""

from __future__ import annotations

from dataclasses import dataclass, field

TOOLS = frozenset(
    {"get_weather", "get_time", "get_current_temperature", "get_temperature_date", "get_current_weather"}
    | {"get_user_info", "register_user", "search_tool", "add_this_and_that", "trending_songs", "refresh"}
    | {"test_function"}
)


@dataclass(frozen=True)
class Sample:
    """`calls` are (name, arguments) pairs; `opened` says that the prompt has opened the reasoning."""

    name: str
    parser: str
    source: str
    output: str
    text: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    reasoning: str | None = None
    opened: bool = False
    broken: bool = False
    """Whether arguments are no JSON."""


WEATHER = '{"location": "San Francisco, CA, USA"}'
TOMORROW = '{"location": "San Francisco, CA, USA", "date": "2024-10-01"}'
NESTED = '{"a": {"b": [{"c": "}]\\" </tool_call> \\\\"}], "d": {}}, "e": "{", "f": null}'
OTHER_JSON = '{"name": "Ann", "parameters": {}} {"name": "get_time"} {"parameters": {}} {bad; <|python_tag|>x.call("y")'

QWEN_DOCS = "qwen.readthedocs.io/en/latest/framework/function_call.html"
VLLM = "github.com/vllm-project/vllm tests/tool_parsers/"
LLAMA_32 = "github.com/meta-llama/llama-models models/llama3_2/text_prompt_format.md"
LLAMA_31 = "llama.com/docs/model-cards-and-prompt-formats/llama3_1"
MISTRAL_DOCS = "docs.mistral.ai/capabilities/function_calling; huggingface.co/mistralai/Mistral-7B-Instruct-v0.3"
HARMONY_DOCS = "cookbook.openai.com/articles/openai-harmony"
R1 = "api-docs.deepseek.com/guides/reasoning_model; huggingface.co/deepseek-ai/DeepSeek-R1"
QWEN3 = "huggingface.co/Qwen/Qwen3-0.6B"
MADE = "made here"

SAMPLES = [
    Sample(
        "hermes-two-calls",
        "hermes",
        QWEN_DOCS,
        f'<tool_call>\n{{"name": "get_current_temperature", "arguments": {WEATHER}}}\n</tool_call>\n<tool_call>\n'
        f'{{"name": "get_temperature_date", "arguments": {TOMORROW}}}\n</tool_call>',
        calls=[("get_current_temperature", WEATHER), ("get_temperature_date", TOMORROW)],
    ),
    Sample(
        "hermes-text-before",
        "hermes",
        VLLM + "test_hermes_tool_parser.py",
        f'Let me look.\n<tool_call>\n{{"name": "get_weather", "arguments": {WEATHER}}}\n</tool_call>\n\nDone.\n',
        text="Let me look.\n\nDone.",
        calls=[("get_weather", WEATHER)],
    ),
    Sample(
        "hermes-arguments-first",
        "hermes",
        MADE,
        f'<tool_call>{{"arguments": {NESTED}, "id": 7, "name": "get_weather"}}</tool_call>',
        calls=[("get_weather", NESTED)],
    ),
    Sample(
        "hermes-arguments-in-a-string",
        "hermes",
        MADE,
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"K\\u00f6ln \\ud83d\\ude00\\"}"}</tool_call>',
        calls=[("get_weather", '{"city": "Köln 😀"}')],
    ),
    Sample(
        "hermes-no-arguments",
        "hermes",
        MADE,
        '<tool_call>{"name": "refresh"}</tool_call><tool_call>{"name": "refresh", "arguments": null}</tool_call>',
        calls=[("refresh", "{}"), ("refresh", "{}")],
    ),
    Sample(
        "smollm2-list",
        "hermes",
        "huggingface.co/HuggingFaceTB/SmolLM2-1.7B-Instruct instructions_function_calling.md",
        f'<tool_call>[{{"name": "get_weather", "arguments": {WEATHER}}}, {{"name": "get_time", "arguments": {{}}}}]'
        "</tool_call>",
        calls=[("get_weather", WEATHER), ("get_time", "{}")],
    ),
    Sample(
        "hermes-no-call",
        "hermes",
        MADE,
        "Use a <tool_calls> or a < b; \n <tool",
        text="Use a <tool_calls> or a < b; \n <tool",
    ),
    Sample(
        "hermes-brace-missing",
        "hermes",
        MADE,
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}</tool_call> ok',
        text=" ok",
        calls=[("get_weather", '{"city": "Rome"}')],
    ),
    Sample(
        "hermes-not-json-then-a-call",
        "hermes",
        MADE,
        '<tool_call>call it<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        text="<tool_call>call it",
        calls=[("get_time", "{}")],
    ),
    Sample(
        "hermes-brackets-crossed",
        "hermes",
        MADE,
        '<tool_call>{"name": "get_time", "arguments": {"a": [1}}</tool_call> ok',
        text="}}</tool_call> ok",
        calls=[("get_time", '{"a": [1')],
        broken=True,
    ),
    Sample(
        "llama31-typed",
        "llama3_json",
        LLAMA_31,
        '{"type": "function", "name": "trending_songs", "parameters": {"n": "10", "genre": "all"}}',
        calls=[("trending_songs", '{"n": "10", "genre": "all"}')],
    ),
    Sample(
        "llama31-python-tag",
        "llama3_json",
        LLAMA_31,
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        calls=[("get_weather", '{"city": "Paris"}')],
    ),
    Sample(
        "llama32-function-as-name",
        "llama3_json",
        "huggingface.co/meta-llama/Llama-3.2-1B-Instruct, as it often answers",
        '{"type": "function", "function": "get_weather", "parameters": {"city": "Paris"}}',
        calls=[("get_weather", '{"city": "Paris"}')],
    ),
    Sample(
        "llama3-nested-function",
        "llama3_json",
        MADE,
        '{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "Paris"}}}',
        calls=[("get_weather", '{"city": "Paris"}')],
    ),
    Sample(
        "llama3-several",
        "llama3_json",
        VLLM + "test_llama3_json_tool_parser.py",
        'Here are the results: {"name": "search_tool", "parameters": {"query": "test1"}} ; '
        '{"name": "get_time", "parameters": {}};{"name": "search_tool", "arguments": {"query": "a {b} [c]"}}\n'
        "Would you like to know more?",
        text="Here are the results:\nWould you like to know more?",
        calls=[("search_tool", '{"query": "test1"}'), ("get_time", "{}"), ("search_tool", '{"query": "a {b} [c]"}')],
    ),
    Sample(
        "llama3-other-json",
        "llama3_json",
        VLLM + "test_llama3_json_tool_parser.py",
        OTHER_JSON,
        text=OTHER_JSON,
    ),
    Sample(
        "pythonic-one",
        "pythonic",
        LLAMA_32,
        "[get_user_info(user_id=7890, special='black')]",
        calls=[("get_user_info", '{"user_id": 7890, "special": "black"}')],
    ),
    Sample(
        "pythonic-types",
        "pythonic",
        VLLM + "test_pythonic_tool_parser.py",
        "[register_user(name='John Doe', age=37, address={'city': 'San Francisco', 'state': 'CA'}, role=None, "
        "passed_test=True, aliases=['John', 'Johnny']), get_time(), test_function(a={}, b=[], c=(1, 2,), d=-1.5e3,)]",
        calls=[
            (
                "register_user",
                '{"name": "John Doe", "age": 37, "address": {"city": "San Francisco", "state": "CA"}, "role": null, '
                '"passed_test": true, "aliases": ["John", "Johnny"]}',
            ),
            ("get_time", "{}"),
            ("test_function", '{"a": {}, "b": [], "c": [1, 2], "d": -1.5e3}'),
        ],
    ),
    Sample(
        "pythonic-strings",
        "llama4_pythonic",
        VLLM + "test_pythonic_tool_parser.py",
        "<|python_start|>[get_weather(city='Martha\\'s Vineyard', metric='\\\"cool units\\\"', x=\"\\n\\u00e9\\q)]\", "
        "y=celsius)]<|python_end|>",
        calls=[
            (
                "get_weather",
                '{"city": "Martha\'s Vineyard", "metric": "\\"cool units\\"", "x": "\\né\\\\q)]", "y": "celsius"}',
            )
        ],
    ),
    Sample(
        "pythonic-no-call",
        "pythonic",
        MADE,
        "See [get_weather](x), [1, 2], [unknown(a=1)] and [get_time",
        text="See [get_weather](x), [1, 2], [unknown(a=1)] and [get_time",
    ),
    Sample(
        "mistral-list",
        "mistral",
        MISTRAL_DOCS,
        '[TOOL_CALLS] [{"name": "get_current_weather", "arguments": {"location": "Paris", "format": "celsius"}, '
        '"id": "VvvODy9mT"}]',
        calls=[("get_current_weather", '{"location": "Paris", "format": "celsius"}')],
    ),
    Sample(
        "mistral-v11",
        "mistral",
        VLLM + "test_mistral_tool_parser.py",
        'I will add.[TOOL_CALLS]add_this_and_that{"a": 3.5, "b": 4}[TOOL_CALLS]get_weather{"city": "São [ARGS]"}',
        text="I will add.",
        calls=[("add_this_and_that", '{"a": 3.5, "b": 4}'), ("get_weather", '{"city": "São [ARGS]"}')],
    ),
    Sample(
        "mistral-v13",
        "mistral",
        "huggingface.co/mistralai/Mistral-Small-3.2-24B-Instruct-2506, Magistral-Small-2509",
        '[TOOL_CALLS]get_weather[CALL_ID]call_abc12[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}',
        calls=[("get_weather", '{"city": "Paris"}'), ("get_time", "{}")],
    ),
    Sample(
        "granite-two",
        "granite",
        VLLM + "test_granite_tool_parser.py",
        'Let me check the weather.\n<|tool_call|> [\n  {"name": "get_weather", "arguments": {"city": "Tokyo"}},\n  '
        '{"arguments": {"timezone": "Asia/Tokyo"}, "name": "get_time"}\n]\nI have it.',
        text="Let me check the weather.\nI have it.",
        calls=[("get_weather", '{"city": "Tokyo"}'), ("get_time", '{"timezone": "Asia/Tokyo"}')],
    ),
    Sample(
        "granite-string-mark",
        "granite",
        VLLM + "test_granite_tool_parser.py",
        '<tool_call> [{\n  "name": "test_function",\n  "arguments": {\n    "quoted": "He said \\"hello\\"",\n    '
        '"path": "C:\\\\Users\\\\file.txt",\n    "unicode": "emoji: 🎉"\n  }\n}]',
        calls=[
            (
                "test_function",
                '{\n    "quoted": "He said \\"hello\\"",\n    "path": "C:\\\\Users\\\\file.txt",\n    '
                '"unicode": "emoji: 🎉"\n  }',
            )
        ],
    ),
    Sample(
        "phi4-mini",
        "phi4_mini_json",
        "huggingface.co/microsoft/Phi-4-mini-instruct",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>',
        calls=[("get_weather", '{"city": "Oslo"}')],
    ),
    Sample(
        "harmony-call",
        "openai",
        HARMONY_DOCS,
        "<|channel|>analysis<|message|>Need to use function get_weather.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"location":"San Francisco"}<|call|>',
        reasoning="Need to use function get_weather.",
        calls=[("get_weather", '{"location":"San Francisco"}')],
    ),
    Sample(
        "harmony-recipient-first",
        "openai",
        "huggingface.co/openai/gpt-oss-20b chat_template.jinja",
        " to=functions.get_time<|channel|>commentary json<|message|><|call|>",
        calls=[("get_time", "{}")],
    ),
    Sample(
        "harmony-preamble",
        "openai",
        HARMONY_DOCS,
        "<|channel|>analysis<|message|>Plan.<|end|><|start|>assistant<|channel|>commentary<|message|>I will look "
        "at <|it|>.<|end|><|start|>assistant<|channel|>analysis<|message|>More.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Done.<|return|>",
        reasoning="Plan.\nMore.",
        text="I will look at <|it|>.\nDone.",
    ),
    Sample("harmony-plain", "openai", MADE, "No header < at all", text="No header < at all"),
    Sample("harmony-cut-header", "openai", MADE, "<|channel|>analy", text="<|channel|>analy"),
    Sample(
        "r1-opened-by-the-prompt",
        "deepseek_r1",
        R1,
        "Okay, 9.11 and\n9.8...\n</think>\n\n9.8 is greater.\n",
        reasoning="Okay, 9.11 and\n9.8...",
        text="9.8 is greater.\n",
        opened=True,
    ),
    Sample("r1-with-mark", "deepseek_r1", R1, "<think>\nHm </thin\n\n</think>\nYes", reasoning="Hm </thin", text="Yes"),
    Sample("r1-cut", "deepseek_r1", R1, "Okay, so\n\n</thi", reasoning="Okay, so\n\n</thi"),
    Sample("qwen3-thinks", "qwen3", QWEN3, "<think>\nOkay.\n</think>\n\nHello!", reasoning="Okay.", text="Hello!"),
    Sample("qwen3-empty", "qwen3", QWEN3, "<think>\n\n</think>\n\nHello!", text="Hello!"),
    Sample("qwen3-does-not-think", "qwen3", QWEN3, "\n<thin king> Hello </think>", text="\n<thin king> Hello </think>"),
    Sample(
        "magistral",
        "mistral",
        "huggingface.co/mistralai/Magistral-Small-2507",
        '[THINK]Let me think[/THINK]Here is the result[TOOL_CALLS]get_weather[ARGS]{"city": "Dallas"}',
        reasoning="Let me think",
        text="Here is the result",
        calls=[("get_weather", '{"city": "Dallas"}')],
    ),
    Sample(
        "qwen3-thinks-and-calls",
        "qwen3+hermes",
        QWEN3,
        "<think>\nA <tool_call>?\n</think>\n\n<tool_call>\n"
        '{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>',
        reasoning="A <tool_call>?",
        calls=[("get_time", '{"zone": "UTC"}')],
    ),
    Sample(
        "required",
        "(required)",
        MADE,
        f'[{{"name": "get_weather", "parameters": {NESTED}}}, {{"name": "get_time", "parameters": {{}}}}]',
        calls=[("get_weather", NESTED), ("get_time", "{}")],
    ),
    Sample("named", "(named)", MADE, f" {NESTED}\n", calls=[("get_weather", NESTED + "\n")]),
]
