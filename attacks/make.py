"""Make snapshots that try to hurt the reader.

Usage:
    python attacks/make.py          the committed files, README.md and expected.json, in this folder
    python attacks/make.py DIR      every file, the large ones too, in DIR (made if missing)
    python attacks/make.py --check  nothing is written; fails when this folder is not up to date

Python 3.10 or newer, standard library only; no randomness, the same bytes each time. The pickles are
built byte by byte: nothing here is made by `pickle`, and nothing is ever loaded. Files of more than
20 KB are not committed: a test makes them with `make.py DIR`.

The attacks that would run code would make an empty file `oomph-attack-ran` in the working folder;
a test can look for it. Never open these files with `pickle.load`.
"""

import base64
import hashlib
import json
import lzma
import struct
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMIT_LIMIT = 20_000
MIB = 1 << 20
MARKER = "oomph-attack-ran"
PROTO = b"\x80\x04"

# --- a pickle writer that can also write what no pickler would ------------------------------------


class Raw(bytes):
    """Opcodes to be put in as they are."""


class Put:
    """A value stored in a memo slot once it is complete."""

    def __init__(self, slot, value):
        self.slot, self.value = slot, value


class Get:
    """What a memo slot holds."""

    def __init__(self, slot):
        self.slot = slot


def enc(v):
    if isinstance(v, Raw):
        return bytes(v)
    if isinstance(v, Put):
        return enc(v.value) + (b"q" + bytes([v.slot]) if v.slot < 256 else b"r" + struct.pack("<I", v.slot))
    if isinstance(v, Get):
        return b"h" + bytes([v.slot]) if v.slot < 256 else b"j" + struct.pack("<I", v.slot)
    if v is None:
        return b"N"
    if isinstance(v, bool):
        return b"\x88" if v else b"\x89"
    if isinstance(v, int):
        if 0 <= v < 256:
            return b"K" + bytes([v])
        if -(1 << 31) <= v < 1 << 31:
            return b"J" + struct.pack("<i", v)
        n = v.bit_length() // 8 + 1
        return b"\x8a" + bytes([n]) + v.to_bytes(n, "little", signed=True)
    if isinstance(v, float):
        return b"G" + struct.pack(">d", v)
    if isinstance(v, str):
        return text(v.encode("utf-8", "surrogatepass"))
    if isinstance(v, tuple):
        return b"(" + b"".join(map(enc, v)) + b"t"
    if isinstance(v, list):
        return b"](" + b"".join(map(enc, v)) + b"e"
    if isinstance(v, dict):
        return b"}(" + b"".join(enc(k) + enc(x) for k, x in v.items()) + b"u"
    raise TypeError(type(v))


def text(raw):
    """A string of these bytes, valid UTF-8 or not."""
    if len(raw) < 256:
        return Raw(b"\x8c" + bytes([len(raw)]) + raw)
    return Raw(b"X" + struct.pack("<I", len(raw)) + raw)


def pickled(v, proto=PROTO):
    return proto + enc(v) + b"."


# --- a small valid snapshot, to hide things in ----------------------------------------------------

BASE = 0x7F0000000000


def frame(name="f", filename="a.py", line=1):
    return {"name": name, "filename": filename, "line": line}


def block(address=BASE, size=512, state="active_allocated", **more):
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": [], **more}


def segment(address=BASE, total=2 * MIB, blocks=None, **more):
    if blocks is None:
        blocks = [block(address, 512), block(address + 512, total - 512, "inactive")]
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "allocated_size": 512,
        "active_size": 512,
        "requested_size": 512,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
        **more,
    }


def event(action="alloc", addr=BASE, size=512, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000, "frames": [], **more}


def snapshot(segments=None, trace=None, **more):
    return {
        "segments": [segment()] if segments is None else segments,
        "device_traces": [[event("segment_alloc", size=2 * MIB), event()] if trace is None else trace],
        "external_annotations": [],
        **more,
    }


VALID = pickled(snapshot())

# --- the list -------------------------------------------------------------------------------------

ATTACKS = []  # (file, "refused" or "safe", what it tries, bytes or a function that makes them)


def attack(name, must, tries, data):
    ATTACKS.append((name, must, tries, data))


def hidden(opcodes):
    """These opcodes as the value of an unknown key."""
    return pickled(snapshot(extra=Raw(opcodes)))


COMMAND = enc("touch " + MARKER)
SYSTEM = b"cos\nsystem\n"
CALL = SYSTEM + b"(" + COMMAND + b"tR"


def code():
    stack_global = enc("os") + enc("system") + b"\x93"
    for name, tries, ops in (
        ("global_reduce", "GLOBAL os.system, REDUCE", CALL),
        ("global_unused", "GLOBAL alone: only the import, then POP", SYSTEM + b"0N"),
        ("stack_global_reduce", "STACK_GLOBAL os.system, REDUCE", stack_global + b"(" + COMMAND + b"tR"),
        ("stack_global_memo", "STACK_GLOBAL with its names out of the memo", enc("os") + b"q\xf0" + b"0" + enc("system") + b"q\xf1" + b"0h\xf0h\xf1\x93(" + COMMAND + b"tR"),
        ("inst", "INST os.system", b"(" + COMMAND + b"ios\nsystem\n"),
        ("obj", "OBJ os.system", b"(" + SYSTEM + COMMAND + b"o"),
        ("newobj", "NEWOBJ subprocess.Popen", b"csubprocess\nPopen\n(" + COMMAND + b"t\x81"),
        ("newobj_ex", "NEWOBJ_EX subprocess.Popen(shell=True)", b"csubprocess\nPopen\n(" + COMMAND + b"t" + enc({"shell": True}) + b"\x92"),
        ("build", "BUILD: sets the state of an object", b"}" + enc({"__setstate__": 1}) + b"b"),
        ("ext1", "EXT1: the extension registry", b"\x82\x01"),
        ("ext2", "EXT2", b"\x83\x01\x00"),
        ("ext4", "EXT4", b"\x84\x01\x00\x00\x00"),
        ("persid", "PERSID: persistent_load of a text id", b"Pid\n"),
        ("binpersid", "BINPERSID: persistent_load of a value", enc("id") + b"Q"),
        ("next_buffer", "NEXT_BUFFER: an out-of-band buffer", b"\x97"),
        ("readonly_buffer", "READONLY_BUFFER", b"\x97\x98"),
        ("reduce_unhandled", "REDUCE of a string: no global needed", enc("os.system") + b"(" + COMMAND + b"tR"),
    ):
        attack(f"code_{name}.pickle", "refused", tries, hidden(ops))
    attack("code_at_top.pickle", "refused", "the classic: the whole file is one REDUCE", PROTO + CALL + b".")
    attack("code_proto2.pickle", "refused", "the same, by protocol 2", b"\x80\x02" + CALL + b".")
    half = [event("segment_alloc", size=2 * MIB)] + [event(), event("free_requested"), event("free_completed")] * 20
    attack("code_second_half.pickle", "refused", "REDUCE after the valid first half of a snapshot", pickled(snapshot(trace=half + [Raw(CALL)] + half[1:])))
    attack("code_nested_unknown.pickle", "refused", "REDUCE deep in an unknown key of a block", pickled(snapshot([segment(blocks=[block(later={"a": [1, ({"b": Raw(CALL)},)]})])])))
    attack("code_as_key.pickle", "refused", "REDUCE as a dict key", hidden(b"}(" + CALL + b"K\x01u"))
    attack("code_in_frame.pickle", "refused", "REDUCE as a file name", pickled(snapshot(trace=[event(frames=[frame(filename=Raw(CALL))])])))
    attack("code_then_popped.pickle", "refused", "REDUCE whose result is thrown away by POP", hidden(CALL + b"0N"))
    attack("code_after_stop.pickle", "safe", "REDUCE after STOP: never to be reached", VALID + CALL + b".")
    attack("code_gzip.pickle.gz", "refused", "the REDUCE behind gzip", gzip_stored(hidden(CALL)))
    attack("code_html.html", "refused", "the REDUCE in the base64 of an HTML file", html(base64.b64encode(hidden(CALL))))


def memo():
    attack("memo_index_max.pickle", "safe", "LONG_BINPUT 0xFFFFFFFF: a memo vector of 4 billion slots", hidden(b"Nr\xff\xff\xff\xff0j\xff\xff\xff\xff"))
    attack("memo_index_sparse.pickle", "safe", "LONG_BINPUT at 64 far apart indices", hidden(b"N" + b"".join(b"r" + struct.pack("<I", n << 26) for n in range(64))))
    attack("memo_binget_unset.pickle", "refused", "BINGET of a slot never set", hidden(b"h\x07"))
    attack("memo_long_binget_unset.pickle", "refused", "LONG_BINGET 0xFFFFFFFF, never set", hidden(b"j\xff\xff\xff\xff"))
    attack("memo_text_get_unset.pickle", "refused", "GET (text form) of a slot never set", hidden(b"g7\n"))
    attack("memo_get_mark.pickle", "refused", "BINPUT with a MARK on top of the stack", hidden(b"(q\x000h\x00"))
    attack(
        "memo_overwritten.pickle",
        "safe",
        "a stack's memo slot overwritten after use: the first use keeps its value",
        pickled(snapshot(trace=[event(frames=Put(5, [frame("first")])), event(frames=Get(5)), event(frames=Put(5, [frame("second")])), event(frames=Get(5))])),
    )
    attack(
        "memo_wrong_kind.pickle",
        "safe",
        "frames that point at a segment, blocks that point at frames",
        pickled(snapshot([Put(1, segment(frames=Put(2, [frame()]))), segment(BASE + 2 * MIB, blocks=Get(2))], [event(frames=Get(1))])),
    )
    attack("memo_segments_as_trace.pickle", "safe", "one list used as segments and as a device's trace", pickled({"segments": Put(1, [segment()]), "device_traces": [Get(1)]}))
    attack(
        "memo_changed_after_use.pickle",
        "safe",
        "a shared stack grows after events have used it",
        pickled(snapshot(trace=[event(frames=Put(3, [frame("one")])), event(frames=Get(3)), event(frames=Raw(b"h\x03" + enc(frame("two")) + b"a"))])),
    )


def nesting():
    n = 200_000
    attack("nest_lists.pickle", "safe", "200,000 nested lists", lambda: hidden(b"]" * n + b"a" * (n - 1)))
    attack("nest_lists_marks.pickle", "safe", "200,000 nested lists by MARK and LIST", lambda: hidden(b"(" * n + b"l" * n))
    attack("nest_dicts.pickle", "safe", "200,000 nested dicts", lambda: hidden(b"}K\x00" * (n - 1) + b"}" + b"s" * (n - 1)))
    attack("nest_tuples.pickle", "safe", "200,000 nested tuples", lambda: hidden(b")" + b"\x85" * n))
    attack("nest_marks.pickle", "safe", "200,000 open MARKs, then the end", lambda: VALID[:-1] + b"(" * n)
    attack("nest_marks_closed.pickle", "safe", "200,000 MARKs, each closed by TUPLE", lambda: hidden(b"(" * n + b"t" * n))
    attack("nest_frames.pickle", "safe", "200,000 nested lists as `frames`", lambda: pickled(snapshot(trace=[event(frames=Raw(b"]" * n + b"a" * (n - 1)))])))
    attack("nest_at_top.pickle", "safe", "200,000 nested lists at the top level", lambda: PROTO + b"]" * n + b"a" * (n - 1) + b".")


def lengths():
    big = struct.pack("<Q", 1 << 62)
    for name, tries, ops in (
        ("binunicode", "BINUNICODE of 4 GiB - 1", b"X\xff\xff\xff\xff"),
        ("binunicode8", "BINUNICODE8 of 2^62 bytes", b"\x8d" + big),
        ("binunicode8_max", "BINUNICODE8 of 2^64 - 1 bytes", b"\x8d" + b"\xff" * 8),
        ("binbytes8", "BINBYTES8 of 2^62 bytes", b"\x8e" + big),
        ("bytearray8", "BYTEARRAY8 of 2^62 bytes", b"\x96" + big),
        ("long4", "LONG4 of 2^31 - 1 bytes", b"\x8b\xff\xff\xff\x7f"),
    ):
        attack(f"length_{name}.pickle", "safe", f"{tries}, of which none follow", hidden(ops))
    attack("length_long4_negative.pickle", "refused", "LONG4 of -1 bytes", hidden(b"\x8b\xff\xff\xff\xff"))
    attack("length_long1_255.pickle", "safe", "LONG1 of 255 bytes as an unknown key's value", hidden(b"\x8a\xff" + b"\x7f" * 255))
    attack("length_long1_255_size.pickle", "safe", "LONG1 of 255 bytes as an event's size", pickled(snapshot(trace=[event(size=Raw(b"\x8a\xff" + b"\x7f" * 255))])))
    attack("length_long1_0.pickle", "safe", "LONG1 of no bytes: zero", pickled(snapshot(trace=[event(size=Raw(b"\x8a\x00"))])))
    attack("length_frame.pickle", "safe", "FRAME of 2^62 bytes around a valid snapshot", PROTO + b"\x95" + big + VALID[2:])
    attack("length_frame_short.pickle", "safe", "FRAME of one byte: opcodes and arguments cross its end", PROTO + b"\x95" + struct.pack("<Q", 1) + VALID[2:])
    attack("length_frames_many.pickle", "safe", "1,000 empty FRAMEs", PROTO + (b"\x95" + bytes(8)) * 1000 + VALID[2:])
    attack("length_bytearray8_small.pickle", "safe", "BYTEARRAY8, whole and small", hidden(b"\x96" + struct.pack("<Q", 3) + b"abc"))


UNDERFLOW = (
    ("append", b"a"),
    ("appends", b"e"),
    ("setitem", b"s"),
    ("setitems", b"u"),
    ("tuple", b"t"),
    ("tuple1", b"\x85"),
    ("tuple2", b"\x86"),
    ("tuple3", b"\x87"),
    ("list", b"l"),
    ("dict", b"d"),
    ("pop", b"0"),
    ("pop_mark", b"1"),
    ("dup", b"2"),
    ("memoize", b"\x94"),
    ("binput", b"q\x00"),
    ("long_binput", b"r\x00\x00\x00\x00"),
    ("put", b"p0\n"),
    ("additems", b"\x90"),
    ("frozenset", b"\x91"),
    ("stop", b"."),
)


def stack():
    for name, op in UNDERFLOW:
        attack(f"underflow_{name}.pickle", "refused", f"{name.upper()} on an empty stack", PROTO + op + b"}.")
    for name, op in (("append", b"]a"), ("setitem", b"}K\x00s"), ("tuple2", b"N\x86"), ("tuple3", b"NN\x87")):
        attack(f"underflow_{name}_partly.pickle", "refused", f"{name.upper()} with one value too few", PROTO + op + b".")
    attack("underflow_appends_no_list.pickle", "refused", "APPENDS with nothing under the MARK", PROTO + b"(K\x00e.")
    attack("underflow_setitems_no_dict.pickle", "refused", "SETITEMS with nothing under the MARK", PROTO + b"(K\x00K\x00u.")
    attack("underflow_across_mark.pickle", "refused", "TUPLE2 that reaches across a MARK", hidden(b"N(N\x86"))
    attack("underflow_stop_in_mark.pickle", "refused", "STOP with a MARK open and nothing in it", PROTO + b"}(.")
    attack("stack_left_over.pickle", "safe", "values left on the stack under the snapshot", PROTO + b"NNN" + VALID[2:])
    attack("stack_setitems_odd.pickle", "refused", "SETITEMS with an odd count", hidden(b"}(K\x00K\x01K\x02u"))
    attack("stack_dict_odd.pickle", "refused", "DICT with an odd count", hidden(b"(K\x00K\x01K\x02d"))
    attack("stack_setitems_on_list.pickle", "refused", "SETITEMS on a list", hidden(b"](K\x00K\x01u"))
    attack("stack_setitem_on_tuple.pickle", "refused", "SETITEM on a tuple", hidden(b")K\x00K\x01s"))
    attack("stack_appends_on_dict.pickle", "refused", "APPENDS on a dict", hidden(b"}(K\x00e"))
    attack("stack_append_on_int.pickle", "refused", "APPEND on an integer", hidden(b"K\x00K\x00a"))
    attack("stack_append_on_str.pickle", "refused", "APPEND on a string", hidden(enc("s") + b"K\x00a"))
    attack("stack_unhashable_key.pickle", "safe", "a list as a dict key", hidden(b"}(]K\x01u"))
    attack(
        "stack_odd_keys.pickle",
        "safe",
        "integers, None, a tuple, a float as keys at every level",
        pickled({**snapshot([{**segment(), 1: 2, None: 3}], [{**event(), (1, 2): 3, 2.5: 4}]), 7: [8], None: {9: 9}}),
    )
    attack(
        "stack_duplicate_keys.pickle",
        "safe",
        "each key of a segment twice: the last one counts",
        pickled(snapshot([Raw(b"}(" + 2 * b"".join(enc(k) + enc(v) for k, v in segment().items()) + b"u")])),
    )
    attack("stack_unknown_opcode.pickle", "refused", "opcode 0xFF", hidden(b"\xff"))
    attack("stack_old_opcodes.pickle", "safe", "harmless opcodes of protocols 0 and 1 (INT, LONG, FLOAT, UNICODE, PUT, GET, DUP)", hidden(b"(I1\nL2L\nF1.5\nVabc\np9\ng9\n2t"))
    attack("stack_bytes_and_sets.pickle", "safe", "bytes, short strings of Python 2, sets", hidden(b"(C\x01aU\x01b\x8f(K\x01\x90(K\x02\x91t"))


def sharing():
    attack("self_list.pickle", "safe", "a list in itself", hidden(b"]q\x00h\x00a"))
    attack("self_dict.pickle", "safe", "a dict in itself", hidden(b"}q\x00K\x01h\x00s"))
    attack("self_segments.pickle", "safe", "the segments list is one of its segments", pickled({"segments": Raw(b"]q\x00h\x00a"), "device_traces": []}))
    attack(
        "self_segment_blocks.pickle",
        "safe",
        "a segment is one of its own blocks",
        pickled({"segments": [Raw(b"}q\x00(" + enc("total_size") + enc(512) + enc("blocks") + b"]h\x00au")], "device_traces": []}),
    )
    attack("self_trace.pickle", "safe", "a trace is one of its own entries", pickled({"segments": [], "device_traces": [Raw(b"]q\x00h\x00a")]}))
    attack("self_traces.pickle", "safe", "device_traces is one of its own traces", pickled({"segments": [], "device_traces": Raw(b"]q\x00h\x00a")}))
    attack("self_frames.pickle", "safe", "a stack is one of its own frames", pickled(snapshot(trace=[event(frames=Raw(b"]q\x00h\x00a"))])))
    attack("self_top.pickle", "safe", "the snapshot is its own segments and traces", PROTO + b"}q\x00(" + enc("segments") + b"h\x00" + enc("device_traces") + b"h\x00u.")

    def shared(list_of, times):
        """A list of `list_of` and then of the same again."""
        return Raw(b"](" + enc(Put(9, list_of)) + b"h\x09" * (times - 1) + b"e")

    attack("shared_segment.pickle", "safe", "one segment a million times", lambda: pickled(snapshot(shared(segment(), 1_000_000))))
    attack("shared_event.pickle", "safe", "one event a million times", lambda: pickled(snapshot(trace=shared(event(), 1_000_000))))

    def blocks_in_many():
        blocks = Put(8, [Put(7, block())] + [Get(7)] * 9_999)
        rest = enc({"device": 0, "address": BASE, "total_size": 512, "blocks": Get(8)})
        return pickled(snapshot([segment(blocks=blocks)] + [Raw(rest)] * 9_999))

    attack("shared_blocks.pickle", "safe", "one list of 10,000 blocks in 10,000 segments: 10^8 blocks", blocks_in_many)

    def traces():
        trace = Put(8, [Put(7, event())] + [Get(7)] * 9_999)
        return pickled({"segments": [], "device_traces": [trace] + [Get(8)] * 9_999})

    attack("shared_trace.pickle", "safe", "one trace of 10,000 events as 10,000 devices: 10^8 events", traces)
    attack("shared_trace_thousand.pickle", "safe", "one trace as a thousand devices", pickled({"segments": [segment()], "device_traces": [Put(8, [event()])] + [Get(8)] * 999}))

    def long_stack():
        stack = Put(8, [Put(7, frame())] + [Get(7)] * 49_999)
        one = enc({"action": "alloc", "addr": BASE, "size": 512, "frames": Get(8)})
        return pickled(snapshot(trace=[event(frames=stack)] + [Raw(one)] * 10_000))

    attack("shared_long_stack.pickle", "safe", "one stack of 50,000 frames in 10,000 events", long_stack)

    def forward_frames():
        lines = Put(8, [Put(7, "x" * 200)] + [Get(7)] * 9_999)
        one = enc({"action": "alloc", "addr": BASE, "size": 512, "forward_frames": Get(8)})
        return pickled(snapshot(trace=[event(forward_frames=lines)] + [Raw(one)] * 10_000))

    attack("shared_forward_frames.pickle", "safe", "forward_frames that join to 2 MB in 10,000 events", forward_frames)

    def laughs(seed):
        """Twelve levels of ten: 10^12 of the seed."""
        out = enc(Put(20, [seed]))
        for level in range(12):
            out = b"](" + out + enc(Get(20 + level)) * 9 + b"e" + b"q" + bytes([21 + level])
        return Raw(out)

    attack("laughs_frames.pickle", "safe", "a stack of 10^12 frames through nested lists", pickled(snapshot(trace=[event(frames=laughs(frame()))])))
    attack("laughs_blocks.pickle", "safe", "10^12 blocks through nested lists", pickled(snapshot([segment(blocks=laughs(block()))])))
    attack("laughs_segments.pickle", "safe", "10^12 segments through nested lists", pickled(snapshot(laughs(segment()))))
    attack("laughs_traces.pickle", "safe", "10^12 events through nested lists", pickled({"segments": [], "device_traces": laughs(event())}))
    attack("laughs_unknown.pickle", "safe", "10^12 values in an unknown key", hidden(laughs(1)))
    attack("laughs_metadata.pickle", "safe", "10^12 strings as user_metadata (the viewer takes an object there)", pickled(snapshot(trace=[event(user_metadata=laughs("lol"))])))


def numbers():
    nan, inf = float("nan"), float("inf")
    extremes = [-1, 0, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 80, -(1 << 63), -(1 << 80)]
    attack(
        "number_sizes.pickle",
        "safe",
        "block, segment and event sizes: negative, 2^62 .. 2^80",
        pickled(
            snapshot(
                [segment(BASE + n * 4 * MIB, total=2 * MIB, blocks=[block(BASE + n * 4 * MIB, v)]) | {"total_size": v} for n, v in enumerate(extremes)],
                [event(addr=BASE + n, size=v) for n, v in enumerate(extremes)],
            )
        ),
    )
    attack(
        "number_addresses.pickle",
        "safe",
        "addresses: negative, 2^62 .. 2^80; ends past 2^64",
        pickled(snapshot([segment(v, blocks=[block(v)]) for v in extremes], [event(a, addr=v) for v in extremes for a in ("segment_alloc", "alloc")])),
    )
    attack(
        "number_sum_overflow.pickle",
        "safe",
        "sums of sizes past 2^64",
        pickled(
            snapshot([segment(BASE + n, total=(1 << 63) - 1, blocks=[block(BASE, (1 << 63) - 1)] * 3) for n in range(3)], [event(addr=n, size=(1 << 63) - 1) for n in range(4)])
        ),
    )
    attack(
        "number_time.pickle",
        "safe",
        "time_us: extremes, going backwards, missing",
        pickled(
            snapshot(
                trace=[event(time_us=v) for v in extremes] + [{"action": "alloc", "addr": 1, "size": 1}],
                external_annotations=[{"name": "a", "stage": s, "device": 0, "time_us": v} for v in extremes for s in ("END", "START")],
            )
        ),
    )
    attack(
        "number_floats.pickle",
        "safe",
        "NaN and infinity where integers are due, and as a setting",
        pickled(
            snapshot(
                [segment(total=v, blocks=[block(size=v)]) for v in (nan, inf, -inf, 1e308, -0.0)],
                [event(size=v, time_us=v) for v in (nan, inf, -inf)],
                allocator_settings={"garbage_collection_threshold": nan, "max_split_size": inf},
            )
        ),
    )
    attack("number_line.pickle", "safe", "frames with line -1, 2^40, 2^80", pickled(snapshot(trace=[event(frames=[frame(line=v) for v in (-1, 1 << 40, 1 << 80)])])))
    attack(
        "number_stream_pool.pickle",
        "safe",
        "streams and pool ids: extremes, tuples too long or short",
        pickled(
            snapshot(
                [segment(stream=v, segment_pool_id=p) for v, p in zip(extremes, ((), (1,), (1, 2, 3), (1 << 80, -1), [1, 2]))], [event(stream=v, pool_id=(v, v)) for v in extremes]
            )
        ),
    )
    attack(
        "number_streams_many.pickle",
        "safe",
        "70,000 different streams: past a 16-bit number",
        lambda: pickled(snapshot(trace=[{"action": "alloc", "addr": n, "size": 1, "stream": n} for n in range(70_000)])),
    )
    attack(
        "number_devices.pickle",
        "safe",
        "device ordinals -1, 255, 256, 2^31, 2^63, 2^80",
        pickled(
            snapshot(
                [segment(device=v) for v in (-1, 255, 256, 1 << 31, 1 << 63, 1 << 80)],
                external_annotations=[{"name": "a", "stage": "START", "device": v, "time_us": 1} for v in (-1, 1 << 31)],
            )
        ),
    )
    attack("devices_100000.pickle", "safe", "100,000 devices, all unused", lambda: pickled({"segments": [], "device_traces": Raw(b"](" + b"]" * 100_000 + b"e")}))

    def used():
        keys = [Raw(b"(" + enc(Put(1, "device")) + enc(Put(2, "total_size")) + enc(Put(3, "blocks")) + enc(Put(4, [block()])) + enc(Put(5, event())) + b"t")]
        segments = b"".join(b"}(h\x01" + enc(n) + b"h\x02K\x01h\x03h\x04u" for n in range(100_000))
        return pickled({"keys": keys, "segments": Raw(b"](" + segments + b"e"), "device_traces": Raw(b"](" + b"]h\x05a" * 100_000 + b"e")})

    attack("devices_100000_used.pickle", "safe", "100,000 devices, each with a segment and an event", used)


def contradictions():
    cases = {
        "total_too_small": ("total_size smaller than its blocks", snapshot([segment(total=512, blocks=[block(BASE + n * 512) for n in range(9)])])),
        "total_too_large": ("total_size larger than its blocks", snapshot([segment(blocks=[block()])])),
        "no_blocks": ("segments without blocks, and with the key missing", snapshot([segment(blocks=[]), {k: v for k, v in segment().items() if k != "blocks"}])),
        "overlapping_segments": ("overlapping segments, and one twice", snapshot([segment(), segment(BASE + MIB), segment()])),
        "same_address": ("two live blocks at one address", snapshot([segment(blocks=[block(), block(), block(BASE + 100)])])),
        "zero_blocks": ("blocks of no bytes", snapshot([segment(blocks=[block(size=0)] * 50)])),
        "unknown_frees": (
            "frees of blocks never allocated, twice over",
            snapshot(trace=[event(a, addr=v) for v in (1, 1, BASE, BASE, 99) for a in ("free_requested", "free_completed", "free_completed")]),
        ),
        "double_alloc": ("the same address allocated again and again", snapshot(trace=[event() for _ in range(50)])),
        "unknown_segment_frees": (
            "segments freed or unmapped that never were",
            snapshot(trace=[event(a, size=2 * MIB) for a in ("segment_free", "segment_unmap", "segment_free")]),
        ),
        "overlapping_maps": (
            "mapped ranges that overlap, unmapped across their ends",
            snapshot(
                trace=[
                    event("segment_map", BASE, 4 * MIB),
                    event("segment_map", BASE + MIB, 4 * MIB),
                    event("segment_unmap", BASE + MIB // 2, 9 * MIB),
                    event("segment_unmap", BASE, 1),
                ]
            ),
        ),
        "unknown_states": (
            "unknown states and actions",
            snapshot([segment(blocks=[block(state=s) for s in ("", "active", "ACTIVE_ALLOCATED", "x" * 99)])], [event(a) for a in ("", "free", "ALLOC", "user_defined", "x" * 99)]),
        ),
        "annotations": (
            "END before START, START for ever, unknown stages",
            snapshot(external_annotations=[{"name": "a", "stage": s, "device": 0, "time_us": 5} for s in ("END", "START", "START", "MIDDLE", "")] + [{}]),
        ),
        "empty_dict": ("a snapshot with no keys", {}),
        "empty_list": ("a list with no segments", []),
    }
    for name, (tries, value) in cases.items():
        attack(f"contradiction_{name}.pickle", "safe", tries, pickled(value))


def strings():
    nasty = {
        "invalid_utf8": ("invalid UTF-8 in names, keys and actions", [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"a\x80b"]),
        "nul": ("NUL bytes in strings", [b"\0", b"a\0b", b"\0" * 99]),
        "ansi": (
            "ANSI escapes, a terminal title, a cleared screen, C1 codes: none may reach the terminal",
            [b"\x1b[2J\x1b[H", b"\x1b]0;title\x07", b"\x1b]8;;http://example.invalid\x07link\x1b]8;;\x07", "\u009b31m".encode(), b"\x08" * 40],
        ),
        "newlines": ("line breaks that forge lines of the report", [b"a\nb", b"a\r\nerror: forged", "a\u2028b".encode(), b"\t|\t", b"::error::forged"]),
        "bidi": ("right-to-left overrides and zero-width characters", ["\u202eyp.a".encode(), "a\u200bb".encode(), ("a" + "\u0301" * 500).encode()]),
        "markup": (
            "script and markup, for reports written as HTML, Markdown, CSV or SVG",
            [b"</script><script>alert(1)</script>", b'"><img src=x onerror=alert(1)>', b"<!--", b"`|**|[x](javascript:alert(1))", b"=HYPERLINK(1)", b"]]>&lt;"],
        ),
        "format": ("format directives and paths", [b"%s%n%x", b"{0}{}{{", b"../../../../etc/passwd", b"C:\\con", b"${jndi:x}", b"-"]),
    }
    for name, (tries, samples) in nasty.items():
        raws = [text(s) for s in samples]
        value = snapshot(
            [segment(segment_type=r, blocks=[block(frames=[frame(r, r)]), block(BASE + 512, state=r)]) for r in raws],
            [event(frames=[frame(r, r)], compile_context=r, user_metadata=r, category=r, forward_frames=[r]) for r in raws] + [event(action=r) for r in raws],
            allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": raws[0], raws[0]: 1},
            external_annotations=[{"name": r, "stage": "START", "device": 0, "time_us": 1} for r in raws],
        )
        value.update({r: r for r in raws})
        attack(f"string_{name}.pickle", "safe", tries, pickled(value))
    attack("string_long_filename.pickle", "safe", "a file name of 1 MB", lambda: pickled(snapshot(trace=[event(frames=[frame(filename="a/" * 500_000)])])))
    attack("string_many_keys.pickle", "safe", "100,000 unknown keys in one event", lambda: pickled(snapshot(trace=[{**event(), **{f"k{n}": n for n in range(100_000)}}])))


WRONG = (None, True, -1, 1.5, "x", [], ["x"], {}, {"x": 1}, (), (1, 2))


def wrong(record):
    """The record once for every key and every kind that is not the right one."""
    return [{**record, k: w} for k in record for w in WRONG if type(w) is not type(record[k])]


def wrong_types():
    full = {
        "segments": lambda: snapshot(wrong(segment())),
        "blocks": lambda: snapshot([segment(blocks=wrong(block()))]),
        "events": lambda: snapshot(trace=wrong(event(compile_context="N/A", user_metadata="", pool_id=(0, 0), category="x", forward_frames=["x"], device_free=1))),
        "frames": lambda: snapshot(trace=[event(frames=wrong(frame()))]),
        "history": lambda: snapshot(
            [segment(blocks=[{"size": 512, "state": "inactive", "history": h} for h in list(WRONG) + [[x] for x in wrong({"addr": 1, "real_size": 2, "frames": [frame()]})]])]
        ),
        "settings": lambda: snapshot(
            allocator_settings={k: w for w in WRONG for k in ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "expandable_segments", "roundup_power2_divisions")}
        ),
        "annotations": lambda: snapshot(external_annotations=wrong({"name": "a", "stage": "START", "device": 0, "time_us": 1}) + list(WRONG)),
        "elements": lambda: {"segments": list(WRONG), "device_traces": list(WRONG) + [list(WRONG)], "external_annotations": list(WRONG)},
    }
    for name, value in full.items():
        attack(f"wrong_{name}.pickle", "safe", f"every wrong type in every field: {name}", lambda value=value: pickled(value()))
        attack(f"wrong_{name}.json", "safe", f"the same as JSON: {name}", lambda value=value: json.dumps(value()).encode())
    for key in ("segments", "device_traces", "allocator_settings", "external_annotations", "trace_alloc_overflowed", "host_segments"):
        for kind, w in (("int", 7), ("string", "x"), ("none", None), ("dict", {"a": 1}), ("list", [1])):
            attack(f"wrong_top_{key}_{kind}.pickle", "safe", f"`{key}` is of the wrong type ({kind})", pickled({**snapshot(), key: w}))
    for kind, w in (("int", 7), ("string", "x"), ("none", None), ("float", 1.5), ("tuple", (1,)), ("list_of_ints", [1, 2])):
        attack(f"wrong_top_{kind}.pickle", "refused" if kind != "list_of_ints" else "safe", f"the top level is no snapshot ({kind})", pickled(w))


def html(payload):
    return (
        b'<!DOCTYPE html>\n<html><body><script type="module">\nadd_local_files([{"name": "snapshot.pickle", "base64": "'
        + payload
        + b'"}], "Active Memory Timeline")\n</script></body></html>\n'
    )


def json_and_html():
    deep = 100_000
    attack("json_deep.json", "safe", "100,000 open brackets", lambda: b"[" * deep)
    attack("json_deep_closed.json", "safe", "100,000 nested lists", lambda: b"[" * deep + b"]" * deep)
    attack("json_deep_objects.json", "safe", "100,000 nested objects", lambda: b'{"a":' * deep + b"1" + b"}" * deep)
    attack("json_deep_unknown.json", "safe", "100,000 nested lists in an unknown key", lambda: b'{"segments":[],"device_traces":[],"x":' + b"[" * deep + b"]" * deep + b"}")
    one = json.dumps(segment()).encode()
    attack(
        "json_duplicate_keys.json",
        "safe",
        "every key twice: the last one counts",
        b'{"segments":7,"segments":[' + one[:-1] + b"," + one[1:] + b'],"device_traces":[[]],"device_traces":[[]]}',
    )
    huge = b'{"segments":[{"device":0,"address":%s,"total_size":%s,"blocks":[{"size":%s,"state":"inactive"}]}],"device_traces":[[{"action":"alloc","addr":%s,"size":%s}]]}'
    for name, number in (
        ("digits", b"9" * 3000),
        ("exponent", b"1e400"),
        ("negative_exponent", b"-1e-400"),
        ("fraction", b"1.0000000000000000001"),
        ("minus_zero", b"-0"),
        ("past_u64", b"18446744073709551616"),
        ("long_exponent", b"1e" + b"9" * 400),
    ):
        attack(f"json_number_{name}.json", "safe", f"giant or odd numbers ({name})", huge % ((number,) * 5))
    for name, data in (
        ("nan", b'{"segments":[{"total_size":NaN,"address":Infinity,"blocks":[]}],"device_traces":[]}'),
        ("surrogate", b'{"segments":[],"device_traces":[[{"action":"\\ud800","addr":1,"size":1}]]}'),
        ("bom", b"\xef\xbb\xbf" + json.dumps(snapshot()).encode()),
        ("utf16", json.dumps(snapshot()).encode("utf-16")),
        ("invalid_utf8", json.dumps(snapshot(x="QQ")).encode().replace(b"QQ", b"\xff\xfe")),
        ("trailing", json.dumps(snapshot()).encode() + b"\0\0\0 {}"),
        ("truncated", json.dumps(snapshot()).encode()[:-40]),
    ):
        attack(f"json_{name}.json", "safe", f"JSON that is not quite JSON ({name})", data)
    attack("json_open_string.json", "refused", "a string without an end", b'{"segments": "')
    attack("json_other.json", "safe", "JSON of something else", b'{"version": 1, "items": [1, 2, 3]}')
    good = base64.b64encode(VALID)
    attack("html_broken_base64.html", "refused", "base64 with foreign characters", html(good[:40] + b"!*&^" + good[40:]))
    attack("html_cut_base64.html", "safe", "base64 cut off, the quotes with it", html(good)[: 150 + len(good) // 2])
    attack("html_no_base64.html", "refused", "HTML without a snapshot", b"<!DOCTYPE html>\n<html><body>no snapshot here</body></html>\n")
    attack("html_empty_base64.html", "refused", "an empty base64 string", html(b""))
    attack("html_many.html", "safe", "10,000 openings of a base64 string without an end", lambda: b"<html>" + b'"base64": ' * 10_000)
    attack("html_nested.html", "safe", "the base64 holds HTML again", html(base64.b64encode(html(good))))


# --- compression ----------------------------------------------------------------------------------


def gzip_stored(data):
    """gzip with one stored block (at most 64 KiB): the same bytes whatever zlib is there."""
    size = len(data)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\x01" + struct.pack("<HH", size, size ^ 0xFFFF) + data + struct.pack("<II", zlib.crc32(data), size)


def gzip_bomb(prefix, fill, mib):
    """prefix, then `mib` MiB of the fill byte; the deflate blocks of one MiB repeated."""
    raw = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = raw.compress(prefix) + raw.flush(zlib.Z_FULL_FLUSH)
    chunk = fill * MIB
    piece = raw.compress(chunk) + raw.flush(zlib.Z_FULL_FLUSH)
    crc = zlib.crc32(prefix)
    for _ in range(mib):
        crc = zlib.crc32(chunk, crc)
    size = (len(prefix) + mib * MIB) & 0xFFFFFFFF
    return b"\x1f\x8b\x08\0\0\0\0\0\x02\xff" + start + piece * mib + b"\x03\0" + struct.pack("<II", crc, size)


def xz_bomb(prefix, fill, mib):
    xz = lzma.LZMACompressor(check=lzma.CHECK_NONE, preset=0)
    chunk = fill * MIB
    return xz.compress(prefix) + b"".join(xz.compress(chunk) for _ in range(mib)) + xz.flush()


ZSTD = b"\x28\xb5\x2f\xfd"


def zstd_block(kind, size, last=False):
    return struct.pack("<I", size << 3 | kind << 1 | last)[:3]


def zstd_raw(data):
    """One frame with one raw block (at most 128 KiB); window of 128 KiB."""
    return ZSTD + b"\x00\x38" + zstd_block(0, len(data), True) + data


def zstd_bomb(prefix, fill, mib):
    """RLE blocks: four bytes make 128 KiB."""
    return ZSTD + b"\x00\x38" + zstd_block(0, len(prefix)) + prefix + (zstd_block(1, 128 << 10) + fill) * (8 * mib) + zstd_block(0, 0, True)


def xz_patch_dictionary(data, code):
    """The same stream, asking for a dictionary of another size in its block header."""
    size = (data[12] + 1) * 4
    header = bytearray(data[12 : 12 + size - 4])
    if header[2:4] != b"\x21\x01":
        raise ValueError("not the block header that was expected")
    header[4] = code
    return data[:12] + bytes(header) + struct.pack("<I", zlib.crc32(bytes(header))) + data[12 + size :]


def compression():
    mib = 1100
    for ext, bomb in (("gz", gzip_bomb), ("xz", xz_bomb), ("zst", zstd_bomb)):
        attack(f"bomb_zeros.{ext}", "refused", "1.1 GiB of zeros", lambda bomb=bomb: bomb(b"", b"\0", mib))
        attack(f"bomb_none.pickle.{ext}", "safe", "1.1 GiB of NONE opcodes in an open list: a giant stack", lambda bomb=bomb: bomb(PROTO + b"](", b"N", mib))
        attack(f"bomb_json.json.{ext}", "safe", "1.1 GiB of open brackets", lambda bomb=bomb: bomb(b"[", b"[", mib))
    attack("bomb_twice.zst.xz", "safe", "zstd in xz: a few hundred bytes for 1.1 GiB of zeros", lambda: lzma.compress(zstd_bomb(b"", b"\0", mib)))
    body = {"gz": gzip_stored(VALID), "xz": lzma.compress(VALID), "zst": zstd_raw(VALID)}
    for ext, data in body.items():
        attack(f"cut_half.pickle.{ext}", "safe", "a compressed stream cut in the middle", data[: len(data) // 2])
        attack(f"cut_header.{ext}", "refused", "only the first bytes of the header", data[:6])
        attack(f"garbage_after.pickle.{ext}", "safe", "a whole stream, then other bytes", data + b"garbage")
        attack(f"twice.pickle.{ext}", "safe", "two streams, one after the other", data + data)
        spoilt = bytearray(data)
        spoilt[len(data) // 2] ^= 0x55
        attack(f"spoilt.pickle.{ext}", "safe", "one byte of the stream changed (zstd has no checksum here)", bytes(spoilt))
    attack("gzip_wrong_crc.pickle.gz", "safe", "the wrong checksum", body["gz"][:-8] + b"\0\0\0\0" + body["gz"][-4:])
    attack("gzip_long_header.gz", "refused", "a file name in the gzip header without an end", b"\x1f\x8b\x08\x08\0\0\0\0\x02\xff" + b"a" * 5000)
    attack("xz_dictionary_4gib.pickle.xz", "safe", "asks for a dictionary of 4 GiB", xz_patch_dictionary(body["xz"], 40))
    attack("zstd_window_max.pickle.zst", "safe", "asks for a window of 3.75 TiB", ZSTD + b"\x00\xff" + body["zst"][6:])
    attack("zstd_size_claim.pickle.zst", "safe", "claims 2^62 bytes of content", ZSTD + b"\xe0" + struct.pack("<Q", 1 << 62) + body["zst"][6:])
    attack("zstd_skippable.zst", "refused", "only skippable frames, the last one of 4 GiB", b"\x50\x2a\x4d\x18\0\0\0\0" * 100 + b"\x50\x2a\x4d\x18\xff\xff\xff\xff")
    deep = VALID
    for _ in range(50):
        deep = gzip_stored(deep)
    attack("nested_50.pickle.gz", "safe", "50 layers of gzip", deep)


# --- what is small and asks for much --------------------------------------------------------------


def again(slot, times):
    return enc(Get(slot)) * times


def keyed(**values):
    """A dictionary whose keys are all read from the memo: `swelling` puts them there."""
    return Raw(b"}(" + b"".join(enc(Get(KEYS[key])) + enc(value) for key, value in values.items()) + b"u")


WORDS = (
    "action",
    "alloc",
    "oom",
    "addr",
    "size",
    "stream",
    "frames",
    "time_us",
    "name",
    "filename",
    "line",
    "forward_frames",
    "segment_alloc",
    "segment_map",
    "segment_unmap",
    "free_requested",
    "free_completed",
    "history",
    "state",
    "stage",
    "START",
    "END",
    "total_size",
    "address",
    "blocks",
)
KEYS = {word: 100 + number for number, word in enumerate(WORDS)}
REMEMBER = b"".join(enc(Put(slot, word)) + b"0" for word, slot in KEYS.items())


NO_FRAMES = Raw(b"]")


def happened(action, number, size=512, frames=NO_FRAMES, **more):
    return enc(keyed(action=Get(KEYS[action]), addr=(number + 1) << 21, size=size, stream=0, frames=frames, time_us=number, **more))


def one_frame(name="f", filename="a.py", line=1):
    return enc(keyed(name=name, filename=filename, line=line))


def of_events(events, before=b"", **more):
    """A snapshot of these events, written out; `before` is put into the memo first."""
    top = {"segments": Raw(b"]"), "device_traces": Raw(b"](](" + b"".join(events) + b"ee"), **more}
    return PROTO + REMEMBER + before + enc(top) + b"."


def zstd_parts(*parts):
    """One frame: bytes as they are, and `(byte, count)` as RLE."""
    blocks, total = [], 0
    for part in parts:
        if isinstance(part, bytes):
            cut = [part[at : at + (128 << 10)] for at in range(0, len(part), 128 << 10)]
            blocks += [(zstd_block(0, len(piece)), zstd_block(0, len(piece), True), piece) for piece in cut]
            total += len(part)
        else:
            byte, left = part
            total += left
            while left:
                run = min(left, 128 << 10)
                blocks.append((zstd_block(1, run), zstd_block(1, run, True), bytes([byte])))
                left -= run
    frame = ZSTD + b"\xa0" + struct.pack("<I", total)
    return frame + b"".join(open_ + piece for open_, _, piece in blocks[:-1]) + blocks[-1][1] + blocks[-1][2], total


def swelling():
    empty = Raw(b"]")
    attack(
        "swell_growing_stack.pickle",
        "safe",
        "a stack of 60,000 frames, appended one by one",
        lambda: of_events([happened("alloc", 1, frames=Raw(b"]" + (enc(Get(0)) + b"a") * 60_000))], one_frame() + b"q\x000"),
    )
    attack(
        "swell_used_and_grown.pickle",
        "safe",
        "a stack that is used, grows by a frame, is used again: 5,000 times",
        lambda: of_events([happened("alloc", n, frames=Raw(enc(Get(1)) + enc(Get(0)) + b"a")) for n in range(5000)], one_frame() + b"q\x000]q\x010"),
    )
    table = Raw(b"}(" + enc(Put(1, "z")) + b"N" + (enc(Get(1)) + b"N") * 300_000 + b"u")
    attack(
        "swell_shared_annotation.pickle",
        "safe",
        "one annotation of 300,000 keys, 300,000 times",
        lambda: of_events([happened("alloc", 1)], enc(table) + b"q\x000", external_annotations=Raw(b"](" + again(0, 300_000) + b"e")),
    )

    def history():
        one = enc(keyed(state=None, size=1, history=Get(2)))
        inside = {"blocks": Raw(b"](" + one * 100_000 + b"e"), "total_size": 1 << 40, "address": 1 << 20}
        return PROTO + REMEMBER + enc(table) + b"q\x000]" + enc(Get(0)) + b"aq\x020" + enc({"segments": [inside], "device_traces": empty}) + b"."

    attack("swell_shared_history.pickle", "safe", "a history of 300,000 keys in 100,000 blocks", history)

    def forward(lines, before, count):
        one = enc(keyed(action=None, size=1, forward_frames=lines))
        return of_events([one] * count, before)

    attack(
        "swell_empty_forward.pickle",
        "safe",
        "a forward traceback of 300,000 empty lines in 100,000 events",
        lambda: forward(Get(0), enc(Put(1, "")) + b"0](" + again(1, 300_000) + b"eq\x000", 100_000),
    )

    def forward_unique():
        before = b"".join(enc(Put(300 + n, "B" * 60_000 + str(n))) + b"0" for n in range(20))
        events = [enc(keyed(action=None, size=1, forward_frames=[Get(300 + n % 20), str(n)])) for n in range(20_000)]
        return of_events(events, before)

    attack("swell_forward_unique.pickle", "safe", "20,000 forward tracebacks of 60 KB, each another", forward_unique)

    def settings(inner, times, repeats=1):
        before = enc(Put(0, "A" * MIB)) + b"0" + enc(Put(2, "x")) + b"0" + enc(Put(3, "allocator_settings")) + b"0"
        before += inner + b"}(" + (enc(Get(2)) + enc(Get(1))) * times + b"uq\x040"
        top = enc({"segments": empty, "device_traces": [[event()]]})
        return PROTO + REMEMBER + before + top[:-1] + (enc(Get(3)) + enc(Get(4))) * repeats + b"u."

    attack("swell_settings_text.pickle", "safe", "one text of a megabyte as 1,024 settings", lambda: settings(enc(Get(0)) + b"q\x010", 1024))
    attack("swell_settings_table.pickle", "safe", "a table of 64 keys of a megabyte as 1,024 settings", lambda: settings(b"}(" + (enc(Get(0)) + b"K\x01") * 64 + b"uq\x010", 1024))
    attack("swell_settings_repeat.pickle", "safe", "a thousand settings of 1 KB, 2,000 times", lambda: settings(enc(Put(1, "B" * 1024)) + b"0", 1024, 2000))

    def repeated(key, item):
        before = enc(Put(0, key)) + b"0" + item + b"q\x010](" + again(1, 300_000) + b"eq\x020"
        top = enc({"segments": empty, "device_traces": [[event()]]})
        return PROTO + before + top[:-1] + (enc(Get(0)) + enc(Get(2))) * 300_000 + b"u."

    attack("swell_host_repeat.pickle", "safe", "host segments of 300,000 lists, 300,000 times", lambda: repeated("host_segments", b"]"))
    attack("swell_annotations_repeat.pickle", "safe", "300,000 annotations, 300,000 times", lambda: repeated("external_annotations", b"}"))
    attack("swell_tuples.pickle", "safe", "20 million tuples of one element", lambda: PROTO + b"N" + b"\x85" * 20_000_000 + b"0" + VALID[2:])

    def tuples_packed():
        noise = b"".join(hashlib.sha256(struct.pack("<I", n)).digest() for n in range(20_000))
        return zstd_parts(PROTO + b"B" + struct.pack("<I", len(noise)) + noise + b"0N", (0x85, 60_000_000), b"0" + VALID[2:])[0]

    attack("swell_tuples.pickle.zst", "safe", "60 million tuples of one element, packed 94-fold", tuples_packed)
    attack(
        "swell_memo_set_again.pickle",
        "safe",
        "a memo slot that is set anew before each of 100,000 stacks",
        lambda: hidden(one_frame_plain() + b"q\x000" + (b"K\x00q\x01K\x01q\x0100](h\x00h\x00e0") * 100_000 + b"N"),
    )
    attack(
        "swell_streams.pickle",
        "safe",
        "100,000 streams, and 256 devices that each have them",
        lambda: (
            of_events([enc(keyed(action=Get(KEYS["alloc"]), size=1, stream=70_000 + n)) for n in range(100_000)])[: -len(b"eeu.")]
            + b"e"
            + (b"](" + happened("alloc", 1) + b"e") * 255
            + b"eu."
        ),
    )
    attack(
        "swell_stack.json",
        "safe",
        "a stack of 200,000 frames in JSON",
        lambda: (
            b'{"segments":[],"device_traces":[[{"action":"alloc","addr":4096,"size":512,"frames":[' + b",".join([b'{"name":"f","filename":"a.py","line":1}'] * 200_000) + b"]}]]}"
        ),
    )
    attack("swell_cut_bomb.json.zst", "refused", "JSON that unpacks to 300 MiB of spaces: refused in the middle", lambda: zstd_parts(b"[", (0x20, 300 * MIB))[0])


def one_frame_plain():
    return enc(frame())


def crowds():
    """As many of everything as fit into a few megabytes: no trick, but each has its own way to be slow."""
    count = 60_000
    attack(
        "crowd_stacks.pickle",
        "safe",
        "60,000 blocks, each of a stack of its own",
        lambda: of_events([happened("alloc", n, 2048, Raw(b"]" + one_frame(f"f{n}", f"m{n % 1000}.py", n % 65_000) + b"a")) for n in range(count)]),
    )
    attack(
        "crowd_nested_ranges.pickle",
        "safe",
        "60,000 segments and as many blocks, each inside the one before",
        lambda: of_events(
            [enc(keyed(action=Get(KEYS[action]), addr=(n + 1) * 512, size=(1 << 40) - n * 1024, time_us=n)) for action in ("segment_alloc", "alloc") for n in range(count)]
        ),
    )
    spread = [int.from_bytes(hashlib.sha256(struct.pack("<I", n)).digest()[:8], "little") for n in range(4096)]
    attack(
        "crowd_maps.pickle",
        "safe",
        "120,000 pages mapped and unmapped, anywhere",
        lambda: of_events(
            [
                enc(
                    keyed(
                        action=Get(KEYS["segment_map" if n % 2 else "segment_unmap"]),
                        addr=(spread[n % 4096] % (1 << 30)) * 512,
                        size=(spread[n * 7 % 4096] >> 32) % (1 << 30) * 512,
                        time_us=n,
                    )
                )
                for n in range(2 * count)
            ]
        ),
    )
    attack(
        "crowd_segments.pickle",
        "safe",
        "60,000 segments of a terabyte that overlap",
        lambda: (
            PROTO
            + REMEMBER
            + enc({"segments": Raw(b"](" + b"".join(enc(keyed(blocks=Raw(b"]"), address=n * 512, total_size=1 << 40)) for n in range(count)) + b"e"), "device_traces": [[event()]]})
            + b"."
        ),
    )

    def annotated(names):
        marks = b"".join(enc(keyed(name=name, stage=Get(KEYS[stage]), time_us=time)) for name, stage, time in names)
        return of_events([happened("alloc", n) for n in range(20_000)], external_annotations=Raw(b"](" + marks + b"e"))

    attack(
        "crowd_annotations.pickle",
        "safe",
        "60,000 annotations, all open at once",
        lambda: annotated([(f"s{n}", "START", n) for n in range(count)] + [(f"s{n}", "END", 1_000_000 + n) for n in range(count)]),
    )
    attack(
        "crowd_steps_marked.pickle",
        "safe",
        "60,000 steps that a profiler marked",
        lambda: annotated([(f"ProfilerStep#{n}", stage, 3 * n + at) for n in range(count) for stage, at in (("START", 0), ("END", 2))]),
    )

    def steps():
        events = []
        for step in range(1500):
            for action in ("alloc", "free_completed"):
                events += [happened(action, 20 * step + n, 1 << 19, Raw(b"](" + one_frame(f"f{n}", "m.py", n + 1) + one_frame("step", "optim.py", 1) + b"e")) for n in range(20)]
        return of_events(events)

    attack("crowd_steps.pickle", "safe", "1,500 steps of an optimizer that frees nothing it took", steps)
    attack(
        "crowd_grow.pickle",
        "safe",
        "60,000 blocks of one line that are never freed",
        lambda: of_events([happened("alloc", n, MIB if n != count // 2 else 512, Raw(b"]" + one_frame() + b"a")) for n in range(count)]),
    )

    def fragmented():
        size = lambda n: 512 * (n % 4000 + 1)
        events = [happened("alloc", n, size(n)) for n in range(count)]
        for n in range(0, count, 2):
            events += [happened("free_requested", n, size(n)), happened("free_completed", n, size(n))]
        return of_events(events + [happened("alloc", count + n, 512 * (n % 4000 + 2)) for n in range(count // 2)])

    attack("crowd_fragmented.pickle", "safe", "150,000 events of a heap that is full of holes", fragmented)
    attack(
        "crowd_long_names.pickle",
        "safe",
        "5,000 blocks of one line whose names have a megabyte",
        lambda: of_events([happened("alloc", n, MIB, Raw(b"]" + enc(Get(0)) + b"a")) for n in range(5000)], one_frame("A" * MIB, "A" * MIB + ".py") + b"q\x000"),
    )
    attack(
        "crowd_out_of_memory.pickle",
        "safe",
        "60,000 out-of-memories, each at another line",
        lambda: of_events([happened("oom", n, 1 << 30, Raw(b"]" + one_frame(f"f{n}", "m.py", 1) + b"a")) for n in range(count)]),
    )
    attack(
        "crowd_devices.pickle",
        "safe",
        "256 devices of 300 events",
        lambda: (
            PROTO + REMEMBER + enc({"segments": [], "device_traces": Raw(b"](" + (b"](" + b"".join(happened("alloc", n, MIB) for n in range(300)) + b"e") * 256 + b"e")}) + b"."
        ),
    )


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def own_format():
    """Recordings of oomph itself: chunks that are packed, one by one."""

    def chunk(kind, *parts):
        packed, raw = zstd_parts(*parts)
        return bytes([kind]) + struct.pack("<III", raw, len(packed), zlib.crc32(packed)) + packed

    def recording(*chunks, version=1, flags=0):
        return b"OOMPH\r\n\x1a" + struct.pack("<HH", version, flags) + b"".join(chunks)

    def events(count):
        return chunk(5, varint(0) + varint(count), (0, 6 * count), b"\0" * 5)

    device = chunk(4, varint(0) + b"\0" + varint(0) + varint(1) + varint(0))
    end = bytes([9]) + chunk(9, b"\0")[1:]
    attack("oomph_events.oomph", "refused", "5.5 million events in a chunk of 1 KB", recording(device, events(5_500_000)))
    attack("oomph_events_often.oomph", "refused", "the same chunk 20 times", recording(device, *[events(5_500_000)] * 20, end))
    attack("oomph_events_within.oomph", "safe", "as many events as the rule for packed files lets through", recording(device, *[events(80_000)] * 34, end))
    annotations = chunk(8, varint(6_000_000), (0, 24_000_000))
    attack("oomph_annotations.oomph", "refused", "120 million annotations", recording(device, events(10), *[annotations] * 20, end))
    segment = varint(0) + varint(1) + varint(1 << 20) + varint(1 << 30) + varint(0) + b"\0" + varint(0) * 3
    attack("oomph_blocks.oomph", "refused", "60 million blocks", recording(device, *[chunk(6, segment + varint(6_000_000), (0, 24_000_000))] * 10, end))
    attack(
        "oomph_streams.oomph",
        "refused",
        "30 million streams on each of 40 devices",
        lambda: recording(*[chunk(4, varint(n) + b"\0" + varint(0) + varint(30_000_000), (0, 30_000_000)) for n in range(40)], events(10), end),
    )
    attack(
        "oomph_settings.oomph", "refused", "settings of eight million numbers", recording(device, events(10), chunk(7, b'{"settings":[0', *[b",", (0x30, 8_000_000)], b"]}"), end)
    )
    attack("oomph_version.oomph", "refused", "a version that is not known", recording(device, events(10), version=2))
    attack("oomph_flags.oomph", "refused", "flags that are not known", recording(device, events(10), flags=0xFFFF))
    attack("oomph_unknown_chunk.oomph", "safe", "a chunk of a kind that is not known", recording(device, events(10), chunk(77, b"hello"), end))


def other():
    attack("empty.pickle", "refused", "an empty file", b"")
    for name, byte in (("80", b"\x80"), ("brace", b"{"), ("stop", b"."), ("1f", b"\x1f"), ("lt", b"<"), ("nul", b"\0"), ("space", b" ")):
        attack(f"one_byte_{name}.pickle", "refused", f"one byte: 0x{byte[0]:02x}", byte)
    noise = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(128))
    attack("random.bin", "refused", "4 KB of noise", noise)
    attack("random_after_proto.pickle", "refused", "PROTO 4, then an opcode that does not exist, then noise", PROTO + b"\xff" + noise)
    # Protocols 0 and 1 have no PROTO opcode; no writer of snapshots uses them.
    attack("protocol0.pickle", "refused", "a snapshot in protocol 0 (text)", b"(dp0\nVsegments\np1\n(lp2\nsVdevice_traces\np3\n(lp4\ns.")
    attack("protocol1.pickle", "refused", "a snapshot in protocol 1: no PROTO opcode", b"}q\0(X\x08\0\0\0segmentsq\x01]q\x02X\x0d\0\0\0device_tracesq\x03]q\x04u.")
    for n in (0, 1):
        attack(f"proto_opcode{n}.pickle", "safe", f"PROTO {n} before a snapshot of protocol 4", pickled(snapshot(), b"\x80" + bytes([n])))
    for n in (6, 255):
        attack(f"protocol{n}.pickle", "refused", f"PROTO {n}: not known yet", pickled(snapshot(), b"\x80" + bytes([n])))
    attack("proto_twice.pickle", "safe", "PROTO again in the middle", hidden(b"\x80\x02N"))
    attack("no_stop.pickle", "safe", "everything but STOP", VALID[:-1])
    attack("only_proto.pickle", "refused", "PROTO 4 and nothing else", PROTO)
    attack("other_pickle.pickle", "safe", "a pickle of something else: a dict of numbers", pickled({"loss": [1.0, 2.0], "step": 3}))


def all_attacks():
    for group in (code, memo, nesting, lengths, stack, sharing, numbers, contradictions, strings, wrong_types, json_and_html, compression, swelling, crowds, own_format, other):
        group()
    names = [a[0] for a in ATTACKS]
    if len(set(names)) != len(names):
        raise AssertionError("two attacks have one name")
    return [(name, must, tries, data() if callable(data) else data) for name, must, tries, data in ATTACKS]


README = """\
# Attacks

Snapshots that try to hurt the reader. Made by `make.py`, which also writes this file:

    python attacks/make.py          # the committed files, this page and expected.json
    python attacks/make.py DIR      # every file, the large ones too

**Never open them with `pickle.load`**: those named `code_*` would run a command (it makes an empty
file `oomph-attack-ran` in the working folder; a test can check that the file never appears).

What must happen:

- **refused**: an error, and no report. No call, no import, no part of the file shown as a snapshot.
- **read safely**: the reader ends by itself, soon, in little memory, without a panic. A report that
  shows what could be made out and a plain error message are both right; which one is the reader's
  choice. Text out of the file must not reach a terminal, an HTML page or a CSV as anything but text.

`expected.json` has `files`, `"refused"` or `"safe"` for each file, and `generated`, the names of the
files that are over 20 KB and not committed.

| File | What it tries | Must be | Committed |
|---|---|---|---|
"""


def page(files):
    out = README
    for name, must, tries, data in files:
        cell = tries.replace("|", "\\|")
        committed = "yes" if len(data) <= COMMIT_LIMIT else f"no ({len(data) / 1000:,.0f} KB)"
        out += f"| `{name}` | {cell} | {'refused' if must == 'refused' else 'read safely'} | {committed} |\n"
    return out


def main():
    args = sys.argv[1:]
    if len(args) > 1 or (args and args[0].startswith("-") and args[0] != "--check"):
        sys.exit(__doc__)
    files = all_attacks()
    if args and args[0] != "--check":
        folder = Path(args[0])
        folder.mkdir(parents=True, exist_ok=True)
        for name, _, _, data in files:
            (folder / name).write_bytes(data)
        return
    expected = {
        "files": {name: must for name, must, _, _ in files},
        "generated": [name for name, _, _, data in files if len(data) > COMMIT_LIMIT],
    }
    wanted = {name: data for name, _, _, data in files if len(data) <= COMMIT_LIMIT}
    wanted["expected.json"] = (json.dumps(expected, indent=1) + "\n").encode()
    wanted["README.md"] = page(files).encode()
    if args:
        differ = [n for n, data in wanted.items() if not (HERE / n).is_file() or (HERE / n).read_bytes() != data]
        if differ:
            sys.exit(f"differ: {', '.join(differ)}")
        return
    for name, data in wanted.items():
        (HERE / name).write_bytes(data)


if __name__ == "__main__":
    main()
