"""Chat templates in the manner of well-known families, and a tokenizer for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiny_models import CHAT_TEMPLATE, make_byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
{%- if message.tool_calls %}
{{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
{{- (message.tool_calls[0].function.arguments | tojson) + '}' + '<|eom_id|>' }}
{%- else %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant, and there is no system role') }}
{%- endif %}
{%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}
{%- endfor %}
"""

GEMMA = """\
{{- bos_token }}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}
"""

QWEN3 = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- set text = message.content %}
{%- if message.role == 'assistant' %}
{%- set thought = message.reasoning_content or '' %}
{%- if '</think>' in text %}
{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set text = text.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > ns.last %}
{%- set text = '<think>\n' + thought + '\n</think>\n\n' + text %}
{%- endif %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + text + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\n\n</think>\n\n' }}
{%- endif %}
{%- endif %}
"""

R1 = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|Assistant|>' + message.content.split('</think>')[-1] + '<|eos|>' }}
{%- else %}{{- '<|User|>' + message.content }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\n' }}{%- endif %}
"""

PHI3 = """\
{%- for message in messages %}
{{- '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- else %}{{- eos_token }}{%- endif %}
"""

TAGGED = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] }}{%- endgeneration %}
{%- else %}{{- message['content'] }}{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

TAGGED_WIDE = TAGGED.replace(
    "{%- endgeneration %}", "{{- '<|im_end|>\n' }}{%- endgeneration %}"
).replace(
    "{{- '<|im_end|>\n' }}\n{%- endfor %}",
    "{%- if message['role'] != 'assistant' %}{{- '<|im_end|>\n' }}{%- endif %}\n{%- endfor %}",
)

PLAIN = """\
{%- for message in messages %}
{{- message['role'] | upper + ': ' + message['content'] + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'ASSISTANT: ' }}{%- endif %}
"""

PARTS = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' }}
{%- for part in message['content'] %}
{%- if part['type'] == 'text' %}{{- part['text'] }}{%- else %}{{- '<image>' }}{%- endif %}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

FAMILIES: dict[str, tuple[str, list[str], str]] = {
    "chatml": (CHAT_TEMPLATE, [], "<|im_end|>"),
    "llama3": (
        LLAMA3,
        ["<|begin|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"],
        "<|eot_id|>",
    ),
    "mistral": (MISTRAL, ["[INST]", "[/INST]", "</s>"], "</s>"),
    "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>", "<eos>"], "<eos>"),
    "qwen3": (QWEN3, [], "<|im_end|>"),
    "r1": (R1, ["<|User|>", "<|Assistant|>", "<|eos|>"], "<|eos|>"),
    "phi3": (PHI3, ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"], "<|endoftext|>"),
    "tagged": (TAGGED, [], "<|im_end|>"),
    "tagged-wide": (TAGGED_WIDE, [], "<|im_end|>"),
    "plain": (PLAIN, [], "<|endoftext|>"),
    "parts": (PARTS, [], "<|im_end|>"),
}

END_OF_TURN = {
    "llama3": "<|eot_id|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
    "r1": "<|eos|>",
    "phi3": "<|end|>",
    "plain": "\n",
}


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with the special tokens and the template of a family."""
    template, special, eos = FAMILIES[family]
    tokenizer = make_byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.eos_token = eos
    tokenizer.chat_template = template
    return tokenizer


def chat(*turns: str, system: str | None = None) -> list[dict[str, Any]]:
    """Return messages of user and assistant by turns."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    return messages + [
        {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(turns)
    ]
