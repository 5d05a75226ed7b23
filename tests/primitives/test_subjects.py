from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heatsink
from heatsink.errors import InvalidKey
from heatsink.primitives.keys import check_key, key_of, partition_of
from heatsink.primitives.subjects import Kind, Subject, subject_of, subject_words

WORDS_JS = Path(heatsink.__file__).parent / "server" / "dashboard" / "static" / "words.js"
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
subjects = st.builds(Subject, st.sampled_from(Kind), names | st.sampled_from(["posts:a", "a:b/c"]))


@given(subjects)
def test_a_text_spells_one_subject(subject: Subject) -> None:
    assert subject_of(subject.text) == subject
    assert key_of(partition_of(subject.text, 3)) == (subject.text, 3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(subject), type=Subject) == subject


@given(subjects, names)
def test_no_users_key_can_be_taken_for_a_subject_of_ours(subject: Subject, key: str) -> None:
    if subject.kind is not Kind.KEY:
        assert check_key(key) != subject.text
        assert partition_of(check_key(key), None) != partition_of(subject.text, None)
        with pytest.raises(InvalidKey, match="NUL"):
            check_key(subject.text)


@pytest.mark.parametrize("key", ["~partition/3", "%00posts:ada", "posts:ada", "table:chat/x"])
def test_a_users_key_may_begin_with_anything(key: str) -> None:
    assert subject_of(check_key(key)) == Subject(Kind.KEY, key)


def test_a_subject_takes_the_place_of_a_key() -> None:
    assert check_key(Subject(Kind.POSTS, "ada")) == "\0posts:ada"
    assert partition_of("\0posts:ada", None) == "%00posts:ada"
    with pytest.raises(InvalidKey, match="at most"):
        check_key(Subject(Kind.POSTS, "x" * 2_000))
    with pytest.raises(InvalidKey, match="must be a str"):
        check_key(Subject(Kind.KEY, "a"))


def test_the_dashboard_names_subjects_as_the_commands_do() -> None:
    """Its words are in a file of its own: browsers do not read Python."""
    table = re.search(r"const KINDS = \{(.*?)\};", WORDS_JS.read_text(), re.DOTALL)
    assert table is not None
    shown = dict(re.findall(r'(\w+): "(.*?)"', table[1]))
    for kind in Kind:
        before = shown.get(kind, f"{kind} ")
        assert subject_words(kind, "name/note").startswith(f"{before}name")
