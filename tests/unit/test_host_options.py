from __future__ import annotations

from pathlib import Path
from typing import Any

import host_models
import onnxruntime
import pytest

import opgraft
import opgraft.host as host
from opgraft.errors import OptionError, RegistryError
from opgraft.host.devices import chosen_device, default_device, gpu_backend
from opgraft.host.options import Options, known_options, option_texts, parse_options


def test_defaults() -> None:
    assert parse_options({}) == Options(device="auto", registry=None, verify=True, log_declined=False)


def test_every_value_is_understood() -> None:
    for row in known_options():
        assert row.help
        for value in row.values or ("some text",):
            parse_options({row.name: value})
        assert parse_options({row.name: row.default}) == Options()


def test_values_become_what_the_fields_hold() -> None:
    options = parse_options({"device": "cpu", "registry": "a.yaml", "verify": "off", "log_declined": "on"})
    assert options == Options(device="cpu", registry="a.yaml", verify=False, log_declined=True)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'devise' \(did you mean 'device'\?\).*device, registry, verify"):
        parse_options({"devise": "cpu"})


def test_an_unknown_value_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'verify' has no value 'maybe'; its values are on, off"):
        parse_options({"verify": "maybe"})


@pytest.mark.parametrize(("word", "means"), [("1", True), ("True", True), ("yes", True), ("0", False), ("NO", False)])
def test_a_switch_takes_the_words_that_the_environment_takes(word: str, means: bool) -> None:
    assert parse_options({"verify": word}).verify is means
    assert parse_options({"log_declined": word}).log_declined is means


def test_python_values() -> None:
    given = {"verify": False, "log_declined": True, "registry": Path("a.yaml"), "device": "cpu"}
    assert parse_options(given) == Options(device="cpu", registry="a.yaml", verify=False, log_declined=True)
    texts = {"verify": "off", "log_declined": "on", "registry": "a.yaml", "device": "cpu"}
    assert option_texts(given) == texts
    assert parse_options(texts) == parse_options(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devise": "cpu"}, "did you mean 'device'"),
        ({"device": "tpu"}, "has no value 'tpu'"),
        ({"device": True}, "'device' has no value True; its values are auto, cpu, gpu"),
        ({"verify": 2}, "'verify' has no value 2; its values are on, off"),
        ({"verify": None}, "'verify' has no value None"),
        ({"registry": False}, "'registry' takes a text, not False"),
        ({"registry": 3}, "'registry' takes a text, not 3"),
    ],
)
def test_session_options_refuse_what_they_cannot_use(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        opgraft.session_options(**options)
    with pytest.raises(OptionError, match=message):
        opgraft.report(host_models.add_model(), **options)


def test_session_options_refuse_a_registry_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"nothing\.yaml: cannot be read"):
        opgraft.session_options(registry=tmp_path / "nothing.yaml")


def test_session_options_take_python_values(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "registry.yaml").write_text('ops: {Add: {deny: ["*"]}}')
    options = opgraft.session_options(verify=False, log_declined=True, registry=tmp_path / "registry.yaml")
    onnxruntime.InferenceSession(host_models.add_model().SerializeToString(), options)
    assert "opgraft declines ai.onnx::Add 'sum': " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devise": "cpu"}, "did you mean 'device'"),
        ({"device": "tpu"}, "its values are auto, cpu, gpu"),
        ({"registry": "/no/such/registry.yaml"}, "/no/such/registry.yaml"),
    ],
)
def test_the_message_reaches_whoever_makes_the_session(options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        host_models.open_session(host_models.add_model(), options)


@host_models.providers_by_name
def test_options_reach_the_provider_by_name_too() -> None:
    host.register()
    model = host_models.add_model().SerializeToString()
    with pytest.raises(RuntimeError, match="unknown option 'devise'"):
        onnxruntime.InferenceSession(model, providers=[(host.EP_NAME, {"devise": "cpu"})], enable_fallback=0)


def test_the_device_follows_option_and_hardware() -> None:
    assert chosen_device("cpu", gpu_chosen=True, gpu_offered=True) == "cpu"
    assert chosen_device("auto", gpu_chosen=True, gpu_offered=True) == "gpu"
    assert chosen_device("auto", gpu_chosen=False, gpu_offered=True) == "cpu"
    assert chosen_device("auto", gpu_chosen=False, gpu_offered=False) == default_device()


@pytest.mark.skipif(gpu_backend() is not None, reason="MLX has a GPU backend here")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no GPU backend.*pip install"):
        chosen_device("gpu", gpu_chosen=False, gpu_offered=False)
    with pytest.raises(OptionError, match=r"no GPU backend.*pip install"):
        opgraft.session_options(device="gpu")


@pytest.mark.parametrize("switch", ["on", "off"])
def test_declined_nodes_are_logged_on_request(switch: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    registry = tmp_path / "registry.yaml"
    registry.write_text('version: 1\nops:\n  Add: {deny: ["*"]}\n')
    options = {"log_declined": switch, "registry": str(registry)}
    host_models.open_session(host_models.add_model(), options, quiet=False)
    log = capfd.readouterr().err
    assert ("opgraft declines ai.onnx::Add 'sum': " in log) == (switch == "on")
