"""What a model to be exported is: its layers, example inputs at two sizes, and which axes are dynamic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]
BOTH = ("dynamo", "torchscript")


@dataclass(frozen=True)
class Architecture:
    """A small model with random weights.

    Attributes:
        name: what files and tables call it.
        make: builds the model.
        inputs: makes example inputs from one entry of `sizes`: by name, in the order of the model's parameters.
        sizes: the first is what the exporter sees, so none of its dynamic dimensions is 1; the others are what the
            graph is run at as well.
        dynamic: the dynamic axes of each input, with the name of the dimension.
        outputs: names of the outputs.
        exporters: which of torch.onnx.export's two take it: "dynamo", "torchscript".
        half: whether weights and inputs are float16.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[..., Inputs]
    sizes: Sequence[tuple[int, ...]]
    dynamic: Mapping[str, Mapping[int, str]]
    outputs: Sequence[str]
    exporters: Sequence[str] = BOTH
    half: bool = False

    def model(self) -> nn.Module:
        """The model, ready for inference, always with the same weights."""
        torch.manual_seed(7)
        model = self.make().eval()
        spread_weights(model)
        return model.half() if self.half else model

    def cases(self) -> list[Inputs]:
        """Example inputs at every size, and others at each of them again."""
        torch.manual_seed(11)
        cases = [self.inputs(*size) for _ in range(2) for size in self.sizes]
        if not self.half:
            return cases
        return [{name: _halved(tensor) for name, tensor in case.items()} for case in cases]


def _halved(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def spread_weights(model: nn.Module) -> None:
    """Give biases and normalisations values other than 0 and 1, and weights a size that keeps signals alive."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 1.0 if name.endswith("weight") else 0.0, 0.1)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            nn.init.normal_(buffer, 0.0, 0.1)
        elif name.endswith("running_var"):
            nn.init.uniform_(buffer, 0.5, 1.5)


def tokens(*shape: int, vocabulary: int = 64) -> Tensor:
    """Random token numbers."""
    return torch.randint(1, vocabulary, shape)


def lengths_mask(batch: int, length: int) -> Tensor:
    """An attention mask, as integers: the first sequence has full length, each further one is a little shorter."""
    kept = torch.tensor([max(1, length - 2 * row) for row in range(batch)])
    return (torch.arange(length) < kept[:, None]).long()


def image(batch: int, height: int, width: int, channels: int = 3) -> Tensor:
    """Random pictures, values between about -2 and 2, coarse structure under fine noise."""
    coarse = torch.randn(batch, channels, -(-height // 8), -(-width // 8))
    smooth = coarse.repeat_interleave(8, 2).repeat_interleave(8, 3)[:, :, :height, :width]
    return smooth + 0.3 * torch.randn(batch, channels, height, width)


def pictures(name: str) -> Callable[..., Inputs]:
    """Inputs of a model that takes nothing but pictures."""

    def make(*size: int) -> Inputs:
        return {name: image(*size)}

    return make


BATCH_ONLY: Mapping[int, str] = {0: "batch"}
BATCH_LENGTH: Mapping[int, str] = {0: "batch", 1: "length"}
PICTURE: Mapping[int, str] = {0: "batch", 2: "height", 3: "width"}
