"""Makes of a checkpoint's tensors what the engine computes with, module by module."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from loraplex.adapters.claims import Role
from loraplex.adapters.dora import gain_of_embedding, gain_of_linear
from loraplex.adapters.effects import (
    Assembled,
    BaseWeights,
    Lookup,
    LoraPair,
    ModuleEffect,
    TokenRows,
)
from loraplex.adapters.errors import Problem
from loraplex.adapters.experts import ExpertPairs
from loraplex.adapters.layout import AdapterLayout, ModuleLayout


class Assembly:
    """One adapter that is put together beside its base model, in the host's memory.

    Vectors are float32 and tokens' ids int64; weights stay as they are stored.
    """

    def __init__(
        self,
        layout: AdapterLayout,
        tensors: Mapping[str, Tensor],
        scales: Mapping[str, float],
        base: BaseWeights,
    ) -> None:
        """``tensors`` by name, as they are stored; ``scales`` by path of those with an update."""
        self._layout = layout
        self._tensors = tensors
        self._scales = scales
        self._base = base
        self._tokens: dict[tuple[object, ...], TokenRows] = {}
        self.problems: list[Problem] = []
        """Why it does not fit the base; it is whole only if there are none."""

    @torch.inference_mode()
    def modules(self, paths: Iterable[str]) -> dict[str, Assembled]:
        """All that it does at some modules, by path."""
        found = {}
        for path in paths:
            module = self._layout.modules[path]
            self._compare(path, module)
            self._check_saved(path, module)
            if not self.problems:
                found[path] = self._module(path, module)
        return found

    def _module(self, path: str, module: ModuleLayout) -> Assembled:
        gain = self._gain(path, module)
        effect = ModuleEffect(
            weight=self._saved_weight(path, module),
            bias=self._stored(module, Role.SAVED_BIAS),
            lookup=self._lookup(path, module),
            gain=None if gain is None else self._vector(gain, module),
            offset=self._offset(path, module, gain),
            tokens=self._token_rows(path, module, gain),
        )
        return Assembled(
            self._pair(path, module),
            effect if effect.tensors() else None,
            self._experts(path, module),
        )

    def _compare(self, path: str, module: ModuleLayout) -> None:
        """Note where a copy of the base's weight is not the base's: then the adapter was trained
        for another. One of the two may have been rounded."""
        entry = module.roles.get(Role.BASE_WEIGHT)
        if entry is None:
            return
        own = self._base.weight(path)
        copy = self._tensors[entry.name][: len(own)].to(own.device)
        if torch.equal(copy.to(own.dtype), own) or torch.equal(copy, own.to(copy.dtype)):
            return
        different = int((copy.to(own.dtype) != own).any(dim=1).sum())
        self.problems.append(
            Problem(
                entry.name,
                "",
                f"differs from the base model's weight in {different} of {len(own)} rows; train "
                "it with modules_to_save, or on this base model",
            )
        )

    def _check_saved(self, path: str, module: ModuleLayout) -> None:
        """Note a saved weight that lies the other way round than the base's."""
        weight = self._saved_weight(path, module)
        if weight is not None and weight.shape[1] != module.num_inputs:
            entry = module.roles[Role.SAVED_WEIGHT]
            reason = "the base model keeps this weight the other way round"
            self.problems.append(Problem(entry.name, str(entry.shape), reason))

    def _saved_weight(self, path: str, module: ModuleLayout) -> Tensor | None:
        weight = self._stored(module, Role.SAVED_WEIGHT)
        if weight is None or not self._base.is_transposed(path):
            return weight
        return weight.T.contiguous()

    def _pair(self, path: str, module: ModuleLayout) -> LoraPair | None:
        a, b = self._stored(module, Role.LORA_A), self._stored(module, Role.LORA_B)
        if a is None or b is None:
            return None
        b = b if len(b) == module.num_outputs else b[: module.num_outputs].clone()
        return LoraPair(a, b, self._scales[path])

    def _experts(self, path: str, module: ModuleLayout) -> ExpertPairs | None:
        a, b = self._stored(module, Role.PARAMETER_A), self._stored(module, Role.PARAMETER_B)
        if a is None or b is None:
            return None
        return ExpertPairs.of(a, b, len(a) // module.num_experts, self._scales[path])

    def _lookup(self, path: str, module: ModuleLayout) -> Lookup | None:
        a, b = self._stored(module, Role.EMBEDDING_A), self._stored(module, Role.EMBEDDING_B)
        if a is None or b is None:
            return None
        return Lookup(a.T.contiguous(), b, self._scales[path])

    def _gain(self, path: str, module: ModuleLayout) -> Tensor | None:
        """By output, with those of tokens that were added."""
        magnitude = self._stored(module, Role.MAGNITUDE)
        if magnitude is None:
            return None
        weight, scale = self._base.weight(path), self._scales[path]
        copy = self._stored(module, Role.BASE_WEIGHT)
        if module.tokens.added and copy is not None:
            weight = torch.cat((weight, copy[len(weight) :].to(weight)))
        a, b = self._stored(module, Role.LORA_A), self._stored(module, Role.LORA_B)
        if a is not None and b is not None:
            return gain_of_linear(magnitude, weight, a, b, scale)
        a, b = self._stored(module, Role.EMBEDDING_A), self._stored(module, Role.EMBEDDING_B)
        assert a is not None, "a magnitude without an update"
        assert b is not None, "a magnitude without an update"
        return gain_of_embedding(magnitude, weight, a, b, scale)

    def _offset(self, path: str, module: ModuleLayout, gain: Tensor | None) -> Tensor | None:
        """What is left of the bias that the base has added, and the bias of the update."""
        if not module.has_offset:
            return None
        base = self._base.bias(path)
        own = torch.zeros(module.num_outputs) if base is None else base.float().cpu()
        trained = self._stored(module, Role.BASE_BIAS)
        wanted = own if trained is None else trained.float()
        if Role.TOKEN_ROWS in module.roles:
            wanted = torch.zeros(module.num_outputs)
        kept = own if gain is None else own * self._vector(gain, module)
        offset = wanted[: module.num_outputs] - kept
        update = self._update_bias(path, module)
        return self._vector(offset if update is None else offset + update[: len(offset)], module)

    def _update_bias(self, path: str, module: ModuleLayout) -> Tensor | None:
        bias = self._stored(module, Role.LORA_B_BIAS)
        return None if bias is None else self._scales[path] * bias.float()

    def _token_rows(self, path: str, module: ModuleLayout, gain: Tensor | None) -> TokenRows | None:
        if not module.tokens.num_tokens:
            return None
        if module.tokens_key not in self._tokens:
            rows = self._trained_rows(module) | self._added_rows(path, module, gain)
            ids = sorted(rows)
            self._tokens[module.tokens_key] = TokenRows(
                torch.tensor(ids),
                torch.stack([rows[token_id] for token_id in ids]),
                self._tokens_bias(path, module) if module.have_tokens_bias else None,
            )
        return self._tokens[module.tokens_key]

    def _trained_rows(self, module: ModuleLayout) -> dict[int, Tensor]:
        trained = self._stored(module, Role.TOKEN_ROWS)
        if trained is None:
            return {}
        return {token_id: trained[row].float() for token_id, row in module.tokens.trained}

    def _added_rows(
        self, path: str, module: ModuleLayout, gain: Tensor | None
    ) -> dict[int, Tensor]:
        """Rows beyond the base's, with the update that they get."""
        ids = list(module.tokens.added)
        copy = self._stored(module, Role.BASE_WEIGHT)
        if copy is None or not ids:
            return {}
        rows = copy[ids].float()
        a, b = self._stored(module, Role.LORA_A), self._stored(module, Role.LORA_B)
        if a is not None and b is not None:
            rows += self._scales[path] * (b[ids].float() @ a.float())
            rows *= 1 if gain is None else gain[ids].cpu().unsqueeze(1)
        a, b = self._stored(module, Role.EMBEDDING_A), self._stored(module, Role.EMBEDDING_B)
        if a is not None and b is not None:
            rows += self._scales[path] * (a[:, ids].float().T @ b.float().T)
            rows *= 1 if gain is None else gain.cpu()
        return dict(zip(ids, rows, strict=True))

    def _tokens_bias(self, path: str, module: ModuleLayout) -> Tensor:
        """Of added tokens; there are no others where this is asked."""
        parts = [self._stored(module, Role.BASE_BIAS), self._update_bias(path, module)]
        total = sum(part.float() for part in parts if part is not None)
        assert isinstance(total, Tensor), "a bias without parts"
        return total[list(module.tokens.added)]

    def _stored(self, module: ModuleLayout, role: Role) -> Tensor | None:
        """On the host, as it was uploaded."""
        entry = module.roles.get(role)
        return None if entry is None else self._tensors[entry.name]

    def _vector(self, values: Tensor, module: ModuleLayout) -> Tensor:
        """Without what belongs to tokens that were added."""
        return values[: module.num_outputs].to("cpu", torch.float32, copy=True)
