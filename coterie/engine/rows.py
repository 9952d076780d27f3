"""A model is a row: any `nn.Module` as a function of flat vectors, k of them evaluated at once."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from coterie.engine.kernels.dropout import KeyedDropout
from coterie.engine.kernels.lowered import Lowered, lower
from coterie.engine.kernels.row_layers import LONELY
from coterie.engine.kernels.shapes import Shapes
from coterie.engine.layout import Layout
from coterie.errors import BadInput
from coterie.keys import generator

Program = Callable[..., tuple[Tensor, dict[str, Tensor]]]
# Samples on which the rewritten module is held against the module itself. Of two alone BatchNorm keeps little but which
# is larger, and fifty layers of it turn the last digit into the sixth.
COMPARED = 8


class Model:
    """An `nn.Module` as a function of rows."""

    def __init__(
        self,
        build: Callable[[], nn.Module] | nn.Module,
        classes: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: str = "float32",
        unit: float = 1.0,
    ) -> None:
        """`build` makes the module (a class will do); `classes` is 0 for regression.

        Rows are always `dtype`; `precision` is that of the arithmetic on them: float32, tf32 or bf16. `unit` is what a
        target of 1 is in the unit that people measure in: targets are standardised, errors are told in theirs.
        """
        if isinstance(build, nn.Module):
            self._build, given = _rebuilder(build), copy.deepcopy(build)
        else:
            self._build, given = build, None
        self.classes, self.device, self.dtype, self.unit = classes, torch.device(device), dtype, unit
        self._given = given
        self.module = (given or self._build()).to(device=self.device, dtype=dtype)
        self.module.requires_grad_(False)
        self.layout = Layout(self.module)
        if not self.layout.parameters:
            raise BadInput("the model has no parameters to train; give an nn.Module with at least one layer")
        norms = [m for m in self.module.modules() if isinstance(m, _NormBase) and m.track_running_stats]
        if any(norm.momentum is None for norm in norms):
            raise BadInput("BatchNorm with momentum=None averages over all steps, which rows cannot; give a momentum")
        # Samples of a batch see each other here, so they have to be told from what fills it.
        self.couples_samples = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())
        # PyTorch has no batched kernel for these: their rows are called one after another.
        self.loops = any(isinstance(m, nn.RNNBase) for m in self.module.modules())
        self.draws = True  # until `probe` has looked: no mask may come from anything but its key
        self.half = precision == "bf16"
        self._lowered = lower(self.module)
        self._compared = False
        # Fusing what lies between the matrix products pays on a GPU; on a CPU its compiler costs more than it saves.
        self._fused = _compiled(self._lowered) if self.device.type == "cuda" else None
        self._shapes = Shapes()

    @property
    def width(self) -> int:
        """d, the length of a row."""
        return self.layout.width

    @property
    def alone(self) -> bool:
        """Whether calls know nothing of each other, so that a CPU's threads may make several at once."""
        written = self._lowered is not None and self._lowered.train is not None
        return written and self._compared and self.device.type == "cpu"

    def masks(self, x: Tensor) -> bool:
        """Whether batches of several sizes may be taken in one call, though samples (such as x) see each other."""
        if not self._compared:
            self._compare(self.start(0)[None], x[None, :COMPARED])
        return self._lowered is not None and self._lowered.train is not None

    def start(self, seed: int, *key: object) -> Tensor:
        """A row of random initial weights, the same for the same key; without a key, the given module's own weights."""
        if self._given is not None and not key:
            module = self._given
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(generator(seed, "start", *key).integers(2**62)))
                module = self._build()
        named = dict(module.named_parameters()) | dict(module.named_buffers())
        return self.layout.flatten({name: t.to(device=self.device, dtype=self.dtype) for name, t in named.items()})

    def starts(self, seed: int, names: Sequence[str], common: bool) -> Tensor:
        """The silos' first models (k, d): one random model for all, or each its own."""
        if common:
            return self.start(seed).expand(len(names), -1).clone()
        return torch.stack([self.start(seed, name) for name in names])

    def probe(self, x: Tensor) -> None:
        """Run the module once on a few samples, to refuse one that does not fit the data or draws as it likes."""
        row = self.start(0)
        self.draws = False
        before = self._random_state()
        key = torch.zeros((), dtype=torch.int64, device=self.device)
        with KeyedDropout(key, active=True) as dropout:
            try:
                parts = (self.layout.parameters, self.layout.buffers)
                weights, buffers = (self.layout.views(row[None], part) for part in parts)
                out, _ = self._under_vmap(self.module, weights, buffers, x[None], True, key[None])
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                shape = tuple(x.shape[1:])
                raise BadInput(
                    f"the model cannot take samples of shape {shape}: {str(error).splitlines()[0]}"
                ) from None
        self.draws = dropout.calls > 0
        if not torch.equal(before, self._random_state()):
            raise BadInput(
                "the model draws random numbers that cannot be keyed, so no run could be repeated; dropout inside an "
                "nn.LSTM or an attention layer does: set that to 0 and put nn.Dropout beside it"
            )
        if self.classes and (out.ndim < 3 or out.shape[2] < self.classes):
            found = tuple(out.shape[2:])
            raise BadInput(f"the model's output {found} does not fit {self.classes} classes; give it that many outputs")
        if not self._compared:
            self._compare(row[None], x[None])

    def forward(
        self, rows: Tensor, x: Tensor, training: bool, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs (k, b, ...) of k rows on their own batches x (k, b, ...), and the buffers after them."""
        return self._call(self._weights(rows), rows, x, training, keys, None)

    def gradient(
        self,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        share: Tensor,
        keys: Tensor | None = None,
        real: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients (k, d) and values (k,) of Σ_j share_j loss_j over each row's batch, and the buffers after it.

        `real` (k, b) is 1 for a sample and 0 for what fills a batch, where the model has to know (only if it `masks`).
        """
        # Each layer's weights are leaves of their own: no pass over whole rows is spent on putting them together.
        weights = {name: t.detach().requires_grad_() for name, t in self._weights(rows).items()}
        with torch.enable_grad():
            out, buffers = self._call(weights, rows, x, True, keys, real)
            values = (self.sample_losses(out, y) * share).sum(1)
            grads = torch.autograd.grad(values.sum(), list(weights.values()), allow_unused=True)
        flat = self.layout.joined(rows, self.layout.parameters, dict(zip(weights, grads, strict=True)))
        if self.layout.buffers:
            flat = torch.nn.functional.pad(flat, (0, self.width - self.layout.trained))
        return flat, values.detach(), buffers

    def _weights(self, rows: Tensor) -> dict[str, Tensor]:
        return self.layout.views(rows.to(torch.bfloat16) if self.half else rows, self.layout.parameters)

    def _call(
        self,
        weights: dict[str, Tensor],
        rows: Tensor,
        x: Tensor,
        training: bool,
        keys: Tensor | None,
        real: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs, and the columns of buffers after them where training moves any."""
        if not self._compared:
            self._compare(rows[:2], x[:2])
        buffers = self.layout.views(rows.detach(), self.layout.buffers)
        keys = torch.zeros(len(x), dtype=torch.int64, device=x.device) if keys is None else keys
        if self._lowered is None or (training and self._lowered.train is None):
            out, moved = self._under_vmap(self.module, weights, buffers, x, training, keys)
        else:
            x = x.to(_kind(weights)) if x.is_floating_point() else x
            if self._fused is not None and training and len(rows) > 1 and real is None:
                out, moved = self._by_program(weights | buffers, x, keys, training)
            else:
                out, moved = self._lowered(weights | buffers, x, keys, training, real)
        after = self.layout.joined(rows, self.layout.buffers, buffers | moved) if moved else None
        return out.to(rows.dtype), after

    def _by_program(
        self, tensors: dict[str, Tensor], x: Tensor, keys: Tensor, training: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The compiled module, with rows of zeros added where there is no program for just so many."""
        assert self._fused is not None and self._lowered is not None
        k, n = len(x), self._shapes.fitting(*x.shape[:2])
        if n is None:
            return self._lowered(tensors, x, keys, training)
        if n == k:
            return self._fused(tensors, x, keys, training)
        grown = {name: _grown(t, n) for name, t in tensors.items()}
        out, moved = self._fused(grown, _grown(x, n), _grown(keys, n), training)
        return out[:k], {name: t[:k] for name, t in moved.items()}

    def _compare(self, rows: Tensor, x: Tensor) -> None:
        """Trust the rewritten module only if it says what the module says: in float64, where equal means equal."""
        self._compared, x = True, x[:, :COMPARED]
        module = copy.deepcopy(self.module).to("cpu", torch.float64)
        rows = rows.detach().to("cpu", torch.float64)
        x = x.to("cpu", torch.float64) if x.is_floating_point() else x.cpu()
        weights, buffers = (self.layout.views(rows, part) for part in (self.layout.parameters, self.layout.buffers))
        lowered, keys = lower(module), torch.arange(len(x))
        for training in (False, True):
            if lowered is not None and not (training and lowered.train is None):
                theirs, moved = self._under_vmap(module, weights, buffers, x, training, keys)
                try:
                    ours, also = lowered(weights | buffers, x, keys, training)
                except (RuntimeError, ValueError, TypeError, IndexError):
                    self._lowered = None
                    continue
                if not _alike(ours, theirs) or not all(_alike(also[name], t) for name, t in moved.items()):
                    self._lowered = None

    def _under_vmap(
        self,
        module: nn.Module,
        weights: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        training: bool,
        keys: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The module itself, over rows by PyTorch's own transformation."""
        module.train(training)
        # Training moves the buffers in place, so it gets a copy of them; a contiguous one of each, because vmap folds
        # the rows into the channels, and of anything else it would move a copy of its own.
        moved = {name: t.clone(memory_format=torch.contiguous_format) if training else t for name, t in buffers.items()}
        if self.couples_samples and self.half:  # here BatchNorm wants weights of the type of its statistics
            weights = {name: t.to(torch.promote_types(t.dtype, self.dtype)) for name, t in weights.items()}
        tensors = weights | moved
        x = x.to(_kind(weights)) if x.is_floating_point() else x

        def call(tensors: dict[str, Tensor], sample: Tensor, key: Tensor) -> Any:
            with KeyedDropout(key, active=training and self.draws):
                return functional_call(module, tensors, (sample,))

        try:
            if len(x) == 1 or self.loops:
                each = [{name: t[row] for name, t in tensors.items()} for row in range(len(x))]
                out = torch.stack([call(one, *own) for one, *own in zip(each, x, keys, strict=True)])
            else:
                out = vmap(call, randomness="different")(tensors, x, keys)
        except ValueError:
            if self.couples_samples and x.shape[1] == 1:
                raise BadInput(LONELY) from None
            raise
        return out, moved if training else {}

    def sample_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample (k, b); a sample with several targets (a sequence) counts as their mean."""
        if not self.classes:
            return (out.reshape(y.shape) - y).square().reshape(*y.shape[:2], -1).mean(-1)
        if y.ndim == 2:
            # The classes before the samples, as the last layer leaves them: over a short last axis the CPU's softmax
            # goes one number at a time.
            return F.cross_entropy(out.transpose(1, 2), y, reduction="none")
        # (k, b, C, ...) against (k, b, ...)
        losses = F.cross_entropy(out.flatten(0, 1), y.flatten(0, 1), reduction="none")
        return losses.reshape(*y.shape[:2], -1).mean(-1)

    def module_of(self, row: Tensor) -> nn.Module:
        """A module of its own with the weights of one row."""
        module = copy.deepcopy(self.module).eval()
        named = dict(module.named_parameters()) | dict(module.named_buffers())
        for name, value in self.layout.named(row).items():
            named[name].copy_(value)
        return module

    def _random_state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()


def _compiled(lowered: Lowered | None) -> Program | None:
    """The same as one program for each number of rows (a symbolic one would be slower, and slow to make)."""
    torch._dynamo.config.cache_size_limit = max(64, torch._dynamo.config.cache_size_limit)
    if lowered is None:
        return None
    if lowered.long:
        lowered.compile_pieces()
        return None
    return torch.compile(lowered, dynamic=False)


def _grown(t: Tensor, rows: int) -> Tensor:
    return F.pad(t, (0, 0) * (t.ndim - 1) + (0, rows - len(t)))


def _kind(weights: Mapping[str, Tensor]) -> torch.dtype:
    return next(iter(weights.values())).dtype


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-6, atol=1e-8)


def _rebuilder(module: nn.Module) -> Callable[[], nn.Module]:
    """New random weights for a given module, by the layers' own `reset_parameters`."""

    def build() -> nn.Module:
        fresh = copy.deepcopy(module)
        for name, layer in fresh.named_modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
            elif list(layer.parameters(recurse=False)):
                raise BadInput(
                    f"layer '{name}' has weights but no reset_parameters(), so it cannot be started at random; "
                    "give the model as a class or function instead of an object"
                )
        return fresh

    return build
