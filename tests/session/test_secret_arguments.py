from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.session.training_facts import (
    HIDDEN,
    command_line,
    is_secret,
    message_without_secrets,
    without_secrets,
)

SECRET = "s3cr3tS3CR3T"


@pytest.mark.parametrize(
    "words",
    [
        ["--token", SECRET],
        ["--hf-token=" + SECRET],
        ["--hf_token", SECRET],
        ["-password", SECRET],
        ["--password", "-" + SECRET],
        ["--wandb.apiKey", SECRET],
        ["model.api_key=" + SECRET],
        ["+secrets.AWS_SECRET_ACCESS_KEY=" + SECRET],
        ["OPENAI_API_KEY=" + SECRET],
        ["--auth", f"user:{SECRET}"],
        ["Authorization: Bearer " + SECRET],
        ["-H", f"X-Custom: Bearer {SECRET}"],
        [f"postgresql://user:{SECRET}@host/db"],
        [f"--db=postgresql://user:{SECRET}@host/db"],
        [f"http://user:p@{SECRET}@host/"],
        [f"mysql://user:p/{SECRET}@host/db"],
        [f"https://host/path?sig={SECRET}&x=1"],
        [f"--data=https://host/path?x=1&access_token={SECRET}"],
        ['{"lr": 0.1, "api_key": "' + SECRET + '"}'],
        ["{'password': '" + SECRET + "', 'lr': 0.1}"],
        ["--config", "{'a': {'token': " + SECRET + "}}"],
        ["--note", "sk-" + SECRET * 3],
        ["hf_" + SECRET * 3],
        ["ghp_" + SECRET * 3],
        ["--id=AKIA" + "A1B2" * 4],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_secret_is_never_in_the_command_line(words: list[str]) -> None:
    line = command_line(["train.py", *words, "--lr", "0.1"])
    assert SECRET not in line
    assert "A1B2" not in line
    assert HIDDEN in line
    assert line.startswith("train.py ")
    assert line.endswith(" --lr 0.1")


@pytest.mark.parametrize(
    "words",
    [
        ["--max_tokens", "512"],
        ["--tokenizer=gpt2"],
        ["--keyboard", "qwerty"],
        ["--lr", "1e-3", "--weight-decay=0.1"],
        ["data.path=/mnt/a b", "model=gpt2-xl"],
        ["https://huggingface.co/gpt2?revision=main"],
        ["--author", "me"],
        ["--primary_key", "id"],
        [""],
        ["-", "--"],
    ],
    ids=lambda words: " ".join(words),
)
def test_what_is_no_secret_can_be_typed_again(words: list[str]) -> None:
    assert shlex.split(command_line(words)) == words


@given(
    st.sampled_from(["--token", "-api-key", "--db_password", "--AUTH_TOKEN", "--client-secret"]),
    st.text("abcXYZ019.+/=_:@?&", min_size=8).filter(lambda text: not text.startswith("-")),
    st.booleans(),
)
def test_the_value_of_a_secret_option_is_never_reported(option: str, secret: str, joined: bool) -> None:
    words = [f"{option}={secret}"] if joined else [option, secret]
    assert secret not in " ".join(without_secrets(["--x", "1", *words, "y"]))


@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_words_at_all_are_taken(words: list[str]) -> None:
    assert len(without_secrets(words)) == len(words)


def test_names_are_read_by_their_words() -> None:
    assert all(map(is_secret, ["token", "hfToken", "MY_PASSWORD", "api-key", "aws_secret_access_key", "authtoken"]))
    assert not any(map(is_secret, ["tokens", "tokenizer", "passes", "secretary", "monkey", ""]))


@pytest.mark.parametrize(
    "words",
    [
        ["--wandb_key", "S6"],
        ["-p", "S7"],
        ["OPENAI_KEY=S8"],
        ["--key", "S9"],
        ["--pat=S10"],
        ["--cookie", "S13"],
        ["--passcode=S14"],
        ["https://host/x?X-Amz-Signature=S5&X-Amz-Credential=S6&part=1"],
    ],
)
def test_a_name_that_may_mean_a_secret_is_taken_to_mean_one(words: list[str]) -> None:
    line = command_line(words)
    assert not re.search(r"S\d", line)
    assert HIDDEN in line


@pytest.mark.parametrize(
    "message",
    [
        f"could not connect to server postgresql://me:{SECRET}@host:5432/db\nIs it running?",
        f"401 Unauthorized: {{'Authorization': 'Bearer {SECRET}'}}",
        f"GET https://host/x?part=1&signature={SECRET} failed",
        f"wrong value: api_key={SECRET}, try again",
        f"Incorrect API key provided: sk-{SECRET * 3}.",
    ],
)
def test_the_message_of_an_error_has_no_secrets(message: str) -> None:
    hidden = message_without_secrets(message)
    assert SECRET not in hidden
    assert HIDDEN in hidden


@pytest.mark.parametrize(
    "message",
    [
        "KeyError: 'token'",
        'Missing key(s) in state_dict: "weight".\n\tsize mismatch for bias: torch.Size([3]) != torch.Size([4])',
        "Expected token: 5, http://host:5000/#/experiments/0 with tokens=7",
        "",
    ],
)
def test_an_error_without_secrets_keeps_its_message(message: str) -> None:
    assert message_without_secrets(message) == message


def test_words_that_are_not_secret_stay_unchanged() -> None:
    words = ["-p", "8080", "--label-key", "class", "--sort_key=step", "--max-tokens", "5", "--monkey", "see"]
    assert without_secrets(words) == words
