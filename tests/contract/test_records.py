import contextlib
import json
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from manyheads.contract import PrivateState, ServerState, Tree, Upload
from manyheads.contract.records import Record

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
names = st.text("abcxyz_", min_size=1, max_size=5)
shapes = st.lists(st.integers(0, 3), max_size=3)
layers = st.lists(names, min_size=1, max_size=3).map(".".join)


@st.composite
def tensors(draw):
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    size = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype == torch.bool:
        raw = bytes(byte % 2 for byte in raw)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


trees = st.dictionaries(layers, tensors(), max_size=4).map(Tree)
values = st.one_of(
    trees,
    tensors(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.dictionaries(st.integers(0, 999), trees, max_size=3),
)
records = st.dictionaries(names, values, max_size=4)


@given(records)
def test_bytes_give_the_same_record_back(fields):
    record = ServerState(**fields)
    back = ServerState.from_bytes(record.to_bytes())
    assert back == record
    assert back.to_bytes() == record.to_bytes()


@given(records, st.randoms())
def test_equal_records_have_equal_bytes(fields, random):
    shuffled = list(fields.items())
    random.shuffle(shuffled)

    def copied(value):
        if isinstance(value, Tree):
            items = list(value.items())
            random.shuffle(items)
            return Tree({name: tensor.clone() for name, tensor in items})
        return value.clone() if isinstance(value, torch.Tensor) else value

    a, b = Upload(**fields), Upload(**{name: copied(value) for name, value in shuffled})
    assert a == b
    assert a.to_bytes() == b.to_bytes()


def test_numbers_differ_where_their_bits_do():
    assert Upload(x=0.0) != Upload(x=-0.0)
    assert Upload(x=1) != Upload(x=1.0)
    assert Upload(x=math.nan) == Upload(x=math.nan)
    assert Upload(x=1.0) != PrivateState(x=1.0)
    assert Upload(x=1.0) != Upload(y=1.0)


def test_a_number_of_numpy_is_a_number():
    record = Upload(weight=np.float64(3.0))
    assert Upload.from_bytes(record.to_bytes()) == record == Upload(weight=3.0)


@given(records, st.data())
def test_damaged_bytes_are_refused(fields, data):
    whole = ServerState(**fields).to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match="ServerState"):
        ServerState.from_bytes(whole[:cut])


@given(records, st.data())
def test_a_changed_byte_gives_a_value_error_or_another_record(fields, data):
    whole = bytearray(ServerState(**fields).to_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):  # anything else would not be understood as damage
        assert isinstance(ServerState.from_bytes(bytes(whole)), ServerState)


def safetensors_file(arrays, fields, version=1):
    return save(arrays, metadata={"manyheads": json.dumps({"format": version, "fields": fields})})


def test_foreign_files_are_refused():
    one = {"a": np.ones(1, np.float32)}
    header = json.dumps([1, 2]).encode()
    for foreign in (
        b"",
        b"no record at all",
        save(one),
        struct.pack("<Q", len(header)) + header,
        safetensors_file(one, ["a"]),
        safetensors_file(one, {"b": "tensor"}),
        safetensors_file(one, {"a": "module"}),
        safetensors_file(one, {"a": {"1": 2}}),
        safetensors_file(one, {"a": True}),
        safetensors_file(one, {"a": ["x"]}),
    ):
        with pytest.raises(ValueError, match="Upload"):
            Upload.from_bytes(foreign)


def test_another_format_is_refused():
    with pytest.raises(ValueError, match="format 2"):
        Upload.from_bytes(safetensors_file({}, {}, version=2))


def test_bytes_smuggle_no_tensor_that_belongs_to_no_field():
    arrays = {"model/head.weight": np.ones(1, np.float32), "secret": np.ones(1, np.float32)}
    with pytest.raises(ValueError, match="'secret'"):
        Upload.from_bytes(safetensors_file(arrays, {"model": "tree"}))


def test_names_are_sorted_on_load():
    arrays = {f"model/{name}": np.ones(1, np.float32) for name in ("z.w", "a.w", "m.w")}
    assert list(Upload.from_bytes(safetensors_file(arrays, {"model": "tree"})).model) == ["a.w", "m.w", "z.w"]


def test_tensors_that_share_storage():
    base = torch.arange(12.0).reshape(3, 4)
    record = ServerState(model=Tree({"a": base, "b": base, "row": base[1], "turned": base.t(), "part": base[:, 1:3]}))
    back = ServerState.from_bytes(record.to_bytes())
    assert back == record
    assert back.model["turned"].tolist() == base.t().tolist()


def test_loaded_tensors_may_be_written():
    back = ServerState.from_bytes(ServerState(model=Tree({"a": torch.zeros(2)})).to_bytes())
    back.model["a"].add_(1)
    assert back.model["a"].tolist() == [1.0, 1.0]


def test_channels_last_tensors_keep_their_values():
    x = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    record = Upload(model=Tree({"w": x}))
    assert record.model["w"].is_contiguous()
    assert torch.equal(Upload.from_bytes(record.to_bytes()).model["w"], x)


def test_tables_by_client():
    record = ServerState(heads={12: Tree({"w": torch.ones(2)}), 3: Tree({"w": torch.zeros(1)}), 7: Tree()})
    back = ServerState.from_bytes(record.to_bytes())
    assert list(back.heads) == [3, 7, 12]
    assert back == record


def test_a_record_is_frozen():
    record = Upload(weight=1.0)
    with pytest.raises(AttributeError, match=r"replace\(weight=\.\.\.\)"):
        record.weight = 2.0
    assert record.replace(weight=2.0).weight == 2.0
    assert record.weight == 1.0


def test_a_record_holds_no_graph():
    w = torch.ones(1, requires_grad=True)
    record = Upload(model=Tree({"w": w * 2}), loss=w.sum())
    assert not record.model["w"].requires_grad
    assert not record.loss.requires_grad


def test_a_missing_field_is_named_with_those_that_are_there():
    with pytest.raises(AttributeError, match=r"Upload has no field 'head'; it holds model, weight"):
        _ = Upload(model=Tree(), weight=1.0).head
    assert Upload(weight=1.0).get("head", 5) == 5


@pytest.mark.parametrize("value", [torch.nn.Linear(1, 1), "text", None, True, [1.0], {"a": Tree()}, {1: 2.0}])
def test_a_record_holds_nothing_else(value):
    with pytest.raises(TypeError, match="field 'x'"):
        Record(x=value)
