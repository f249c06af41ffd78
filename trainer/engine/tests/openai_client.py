"""Talks to a server through the `openai` package; run by openai.rs with the server's base URL."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
messages = [{"role": "user", "content": "hello"}]

models = client.models.list()
assert [m.id for m in models] == ["tiny"], models
assert client.models.retrieve("tiny").id == "tiny"

chat = client.chat.completions.create(
    model="tiny", messages=messages, max_completion_tokens=9, n=2, seed=4, temperature=0.8, logprobs=True,
    extra_body={"ignore_eos": True, "return_token_ids": True, "top_k": 20, "min_p": 0.001},
)
assert len(chat.choices) == 2 and chat.usage.completion_tokens == 18, chat
for choice in chat.choices:
    assert choice.message.role == "assistant" and choice.finish_reason == "length"
    assert len(choice.logprobs.content) == 9 and len(choice.token_ids) == 9
    assert all(entry.logprob <= 0 for entry in choice.logprobs.content)
assert len(chat.prompt_token_ids) == chat.usage.prompt_tokens

parts = ["", ""]
ids = [[], []]
usage = None
for chunk in client.chat.completions.create(
    model="tiny", messages=messages, max_completion_tokens=9, n=2, seed=4, temperature=0.8, stream=True,
    stream_options={"include_usage": True},
    extra_body={"ignore_eos": True, "return_token_ids": True, "top_k": 20, "min_p": 0.001},
):
    if chunk.usage:
        usage = chunk.usage
    for choice in chunk.choices:
        parts[choice.index] += choice.delta.content or ""
        ids[choice.index] += getattr(choice, "token_ids", None) or []
assert parts == [c.message.content for c in chat.choices], (parts, chat)
assert ids == [c.token_ids for c in chat.choices]
assert usage.completion_tokens == 18 and usage.prompt_tokens == chat.usage.prompt_tokens, usage

text = client.completions.create(model="tiny", prompt=["ab", "cd"], max_tokens=5, seed=1, logprobs=0, extra_body={"ignore_eos": True})
assert [c.index for c in text.choices] == [0, 1] and len(text.choices[0].logprobs.token_logprobs) == 5
assert text.usage.prompt_tokens == 4, text.usage
again = client.completions.create(model="tiny", prompt=[97, 98], max_tokens=5, seed=1, extra_body={"ignore_eos": True})
assert again.choices[0].text == text.choices[0].text

for bad, name in (({"temperature": -1}, "temperature"), ({"presence_penalty": 1}, "presence_penalty")):
    try:
        client.chat.completions.create(model="tiny", messages=messages, **bad)
        raise SystemExit(f"{name} was not refused")
    except openai.BadRequestError as error:
        assert error.param == name, error
try:
    client.chat.completions.create(model="other", messages=messages)
    raise SystemExit("an unknown model was not refused")
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error

opened = client.completions.create(model="tiny", prompt="x", max_tokens=400, stream=True, extra_body={"ignore_eos": True})
next(iter(opened))
opened.close()
