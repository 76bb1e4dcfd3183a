"""Fourier transforms, windows and mel filters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kit import check_refused

from opgraft.errors import TranslationError
from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.sessions import open_session
from opgraft.testing import check_declined, check_node, decisions_for, node_model, run_model


def integer(value, dtype=np.int64):
    return np.array(value, dtype)


def signal(*shape, dtype=np.float32):
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def check_transform(x, length, axis, *, opset=20, **attributes):
    inputs = [x, None if length is None else integer(length)]
    constant = [] if length is None else [1]
    if opset == 17:
        attributes["axis"] = axis
    else:
        inputs.append(integer(axis))
        constant.append(2)
    while inputs[-1] is None:
        inputs.pop()
    return check_node("DFT", *inputs, opset=opset, constant=constant, **attributes)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axis", [0, 1, -2, -3])
@pytest.mark.parametrize("length", [None, 4, 7, 10])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_whole_transforms(opset, axis, length, parts, inverse):
    check_transform(signal(3, 7, parts), length, axis, opset=opset, inverse=inverse)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 4, 7, 10])
def test_half_of_a_spectrum(opset, axis, length):
    check_transform(signal(3, 7, 1), length, axis, opset=opset, onesided=1)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 4, 9, 10])
def test_a_real_signal_of_half_a_spectrum(opset, axis, length):
    check_transform(signal(3, 7, 2), length, axis, opset=opset, inverse=1, onesided=1, reference="onnx")


def test_defaults_of_the_axis():
    x = signal(2, 5, 6, 1)
    for opset in (17, 20):
        check_node("DFT", x, opset=opset)
        check_node("DFT", x, integer(4, np.int32), opset=opset, constant=(1,))


def test_transforms_of_unknown_sizes():
    check_node("DFT", signal(2, 6, 2), None, integer(1), opset=20, dynamic=True)
    check_node("DFT", signal(2, 6, 1), integer(8), integer(1), opset=20, dynamic=True)


def test_transforms_of_float16():
    x = signal(2, 6, 1, dtype=np.float16)
    expected = np.fft.fft(x[..., 0].astype(np.float32))
    expected = np.stack([expected.real, expected.imag], axis=-1).astype(np.float16)
    check_node("DFT", x, opset=20, reference=[expected], tolerance=1e-3)


def test_there_and_back_again():
    x = signal(3, 8, 1)
    (half,) = check_node("DFT", x, opset=20, onesided=1)
    (back,) = check_node("DFT", half, opset=20, onesided=1, inverse=1, reference="onnx")
    np.testing.assert_allclose(back, x, atol=1e-6)


def test_double_precision_is_declined():
    check_declined("DFT", signal(2, 6, 1, dtype=np.float64), opset=20, because="float64")
    check_declined("STFT", signal(2, 16, 1, dtype=np.float64), integer(4), None, integer(8), because="float64")


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=3),
    st.sampled_from([1, 2]),
    st.integers(0, 1),
    st.integers(0, 1),
    st.none() | st.integers(1, 9),
    st.integers(0, 2),
)
def test_transforms_against_numpy(shape, parts, inverse, onesided, length, axis):
    assume(axis < len(shape) and not (onesided and parts == 1 + (not inverse)))
    assume(not (inverse and onesided and length is None and shape[axis] == 1))
    check_transform(signal(*shape, parts), length, axis, inverse=inverse, onesided=onesided, reference="onnx")


@pytest.mark.parametrize("reference", ["cpu", "onnx"])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("window", "length"), [(True, 16), (True, None), (False, 15), (False, 37)])
def test_short_time_transforms(reference, onesided, parts, window, length):
    if parts == 1 or not onesided:
        given = [signal(16) if window else None, None if length is None else integer(length)]
        while given[-1] is None:
            given.pop()
        constant = [index for index, each in ((1, True), (3, length)) if each]
        inputs = [signal(2, 37, parts), integer(5), *given]
        check_node("STFT", *inputs, opset=17, onesided=onesided, constant=constant, reference=reference)


def test_short_time_transforms_of_unknown_sizes():
    check_node("STFT", signal(2, 37, 1), integer(5), signal(16), integer(16), opset=17, dynamic=True)


WINDOWS = ("HannWindow", "HammingWindow", "BlackmanWindow")


@pytest.mark.parametrize("operator", WINDOWS)
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 7, 16])
@pytest.mark.parametrize("number", [1, 2, 3, 6, 7, 11, 12])
def test_windows(operator, periodic, size, number):
    if size == 1 and not periodic and number not in (1, 11):
        return  # NaN as an integer is whatever the processor makes of it
    model = {"opset": 17, "constant": (0,), "periodic": periodic, "output_datatype": number}
    # ONNX Runtime's coefficients are float32, of float64 windows too.
    (output,) = check_node(operator, integer(size), tolerance=1e-7 if number == 11 else None, **model)
    assert output.dtype == NAME_OF_ONNX[number]


@pytest.mark.parametrize("operator", WINDOWS)
def test_windows_of_a_size_known_only_at_run_time(operator):
    check_node(operator, integer(9, np.int32), opset=17)
    check_node(operator, integer(9), opset=17, output_datatype=10, reference="onnx", tolerance=1e-3)
    check_node(operator, integer(0), opset=17, reference="onnx")


MEL = [
    (8, 16, 8192, 0.0, 4096.0),
    (8, 64, 16000, 20.0, 7600.0),
    (40, 400, 16000, 0.0, 8000.0),
    (80, 400, 16000, 0.0, 8000.0),
    (80, 512, 22050, 0.0, 8000.0),
    (128, 1024, 44100, 20.0, 20000.0),
    (20, 256, 8000, 133.33, 3700.0),
]


@pytest.mark.parametrize("reference", ["cpu", "onnx"])
@pytest.mark.parametrize("case", MEL)
@pytest.mark.parametrize("number", [1, 11])
def test_mel_weights(reference, case, number):
    inputs = [integer(each) if isinstance(each, int) else np.float32(each) for each in case]
    constant = (0, 1, 2, 3, 4)
    check_node("MelWeightMatrix", *inputs, opset=17, constant=constant, output_datatype=number, reference=reference)


def test_an_output_type_that_mlx_lacks():
    check_declined(
        "HannWindow", integer(4), opset=17, output_datatype=17, because="output_datatype 17", output_types=["float32"]
    )


def test_a_real_signal_may_lack_its_last_dimension() -> None:
    x = np.random.default_rng(3).normal(size=(2, 464)).astype(np.float32)
    window = np.hanning(64).astype(np.float32)
    check_node("STFT", x, np.array(32), window, np.array(64), opset=17, onesided=1)
    check_node("STFT", x, np.array(32), window, np.array(64), opset=17, onesided=1, constant=(1, 2, 3))


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_of_negative_size(operator):
    check_refused(operator, integer(-1), opset=17, index=0, match="a window of size -1")


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms_of_nothing(inverse, parts):
    x = signal(2, 0, parts)
    check_node("DFT", x, opset=20, inverse=inverse, dynamic=True)
    check_refused("DFT", x, opset=20, inverse=inverse, onesided=1, index=0, match="no (such )?transform", dynamic=True)
    for length in (1, 5):
        refusal = f"no transform of length {length} of 0 elements"
        check_refused("DFT", x, integer(length), opset=20, inverse=inverse, match=refusal, dynamic=True)


def test_a_one_sided_inverse_of_one_bin():
    check_node("DFT", signal(2, 1, 2), opset=20, inverse=1, onesided=1, dynamic=True)


@pytest.mark.parametrize(
    ("shape", "length", "axis", "attributes"),
    [
        ((1, 4, 1), 0, None, {}),
        ((1, 4, 1), -1, None, {}),
        ((1, 4, 1), None, 3, {}),
        ((1, 4, 1), None, -4, {}),
        ((1, 4, 1), None, 2**40, {}),
        ((1, 4, 3), None, None, {}),
        ((1, 4, 1), None, None, {"inverse": 1, "onesided": 1}),
    ],
)
def test_transforms_that_are_not_there(shape, length, axis, attributes):
    inputs = [signal(*shape), *(None if each is None else integer(each) for each in (length, axis))]
    while inputs[-1] is None:
        inputs.pop()
    refusal = "no axis|no (such )?transform"
    check_refused("DFT", *inputs, opset=20, index=0, match=refusal, dynamic=True, **attributes)


@pytest.mark.parametrize(("step", "window", "length"), [(4, 64, 64), (4, 4, 5), (4, 17, 17)])
def test_frames_that_do_not_fit(step, window, length):
    inputs = signal(1, 16, 1), integer(step), np.ones(window, np.float32), integer(length)
    check_refused("STFT", *inputs, opset=17, match="has no frames|window has shape", dynamic=True)


@pytest.mark.parametrize(
    ("count", "length", "rate", "low", "high"),
    [
        (-1, 16, 8000, 0.0, 4000.0),
        (8, 16, 8000, 0.0, 8000.0),
        (8, 16, 8000, -100.0, 4000.0),
        (8, 16, 0, 0.0, 4000.0),
        (8, 16, 8000, np.nan, 4000.0),
        (8, -16, 8000, 0.0, 4000.0),
    ],
)
def test_filters_outside_the_spectrum(count, length, rate, low, high):
    edges = [np.array(each, np.float32) for each in (low, high)]
    inputs = integer(count), integer(length), integer(rate), *edges
    check_refused("MelWeightMatrix", *inputs, opset=17, match="filters")


@pytest.mark.parametrize(("step", "length"), [(0, 4), (-1, 4), (4, 0), (4, -1)])
def test_frames_of_no_length(step, length):
    """ONNX Runtime's CPU provider divides by such numbers, which ends the process: no such node is left to it."""
    inputs = signal(1, 16, 1), integer(step), None, integer(length)
    feeds = {"x0": inputs[0], "x1": inputs[1], "x3": inputs[3]}
    for constant in ((), (1, 3)):
        model = node_model("STFT", inputs, opset=17, constant=constant)
        assert not decisions_for(model).declined
        with pytest.raises(TranslationError, match=r"node 'node'.*has no frames"):
            run_model(model, {name: feeds[name] for name in feeds if int(name[1]) not in constant})


def test_a_window_of_no_elements():
    inputs = signal(1, 16, 1), integer(2), np.ones(0, np.float32)
    model = node_model("STFT", inputs, opset=17, constant=[1])
    session = open_session(model).session
    with pytest.raises(Exception, match=r"node 'node'.*a signal of 16 has no frames of 0, each 2 after the last"):
        session.run(None, {"x0": inputs[0], "x2": inputs[2]})
