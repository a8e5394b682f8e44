"""Text as it is written for oomph's readers, which take UTF-8 only."""

import json
import re

# What stands for the bytes of a file's name that are no text.
_LONE = re.compile("[\ud800-\udfff]")


def encoded(text: str) -> bytes:
    """With the replacement character for what is no text, as the recorder has it in the names of files."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _LONE.sub("\ufffd", text).encode()


def as_json(value: object) -> bytes:
    """JSON that every reader takes: Python's own escapes what is no text, which Rust refuses."""
    return encoded(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
