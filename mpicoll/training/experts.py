"""Expert parallel: each token goes to the one expert that a router chose for it, on whatever rank that is, and back.

How many tokens go from each rank to each is known only when they are routed, so that counts are exchanged first, and
tokens by alltoallv; twice forward and twice backward (Fedus, Zoph, Shazeer, Switch transformers, 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import TrainingError
from .modules import Array, Module, Parameter


class Experts(Module):
    """Experts on all ranks, in the order of ranks: as many of each rank's as it was given. x is (tokens, features).

    Ranks route with the same weights, and each has its own tokens. The parameters of experts are marked `local`: their
    gradients are of all ranks' tokens already.
    """

    def __init__(self, comm: Any, router: Array, experts: Sequence[Module]) -> None:
        """Take the experts of this rank. Collective; raises TrainingError where the router has no column for each."""
        self.comm, self.experts, self.parts = comm, experts, experts
        self.router = Parameter(router)
        self.own = [self.router]
        for expert in experts:
            for parameter in expert.parameters():
                parameter.local = True
        self.on = np.array(comm.allgather(len(experts)))  # how many experts each rank has
        if router.shape[1] != self.on.sum():
            raise TrainingError(f"the router has {router.shape[1]} columns, and the ranks have {self.on.sum()} experts")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return what the tokens' experts make of them, times the routers' confidence."""
        scores = x @ self.router.value
        powers = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
        shares = powers / powers.sum(axis=1, keepdims=True)
        chosen = shares.argmax(axis=1)
        gate = shares[np.arange(len(x)), chosen]
        order = np.argsort(chosen, kind="stable")
        route = self._route(np.bincount(chosen, minlength=self.router.shape[1]))
        arrived = self._there(x[order], route)
        results = [expert.forward(part) for expert, part in zip(self.experts, self._by_expert(arrived, route))]
        back = self._back(self._by_rank([y for y, _ in results], route, x), route)
        out = np.empty_like(back)
        out[order] = back
        return out * gate[:, None], (x, shares, chosen, gate, order, route, [saved for _, saved in results], out)

    def backward(self, dy: Array, saved: Any) -> Array:
        """Send gradients the way that tokens went, and back."""
        x, shares, chosen, gate, order, route, inner, out = saved
        arrived = self._there((dy * gate[:, None])[order], route)
        grads = [expert.backward(part, context)
                 for expert, part, context in zip(self.experts, self._by_expert(arrived, route), inner)]  # fmt: skip
        back = self._back(self._by_rank(grads, route, x), route)
        dx: Array = np.empty_like(x)
        dx[order] = back
        into = -shares * (gate * (dy * out).sum(axis=1))[:, None]
        into[np.arange(len(x)), chosen] += gate * (dy * out).sum(axis=1)
        self.router.grad += x.T @ into
        dx += into @ self.router.value.T
        return dx

    # -- the ways of tokens -----------------------------------------------------------------------------

    def _route(self, to_experts: Array) -> tuple[Array, Array]:
        """Return how many tokens go to each rank, and how many come, by (rank, expert here): counts are exchanged."""
        come = np.empty((self.comm.size, len(self.experts)), np.int64)
        self.comm.Alltoallv([to_experts, self.on.tolist()], [come, [len(self.experts)] * self.comm.size])
        return np.array([part.sum() for part in np.split(to_experts, np.cumsum(self.on)[:-1])]), come

    def _there(self, rows: Array, route: tuple[Array, Array]) -> Array:
        """Send rows, in the order of experts, to the ranks of these; return what comes, rank by rank."""
        sent, come = route[0], route[1].sum(axis=1)
        return self._exchange(rows, sent, come)

    def _back(self, rows: Array, route: tuple[Array, Array]) -> Array:
        """Send rows back to where they came from."""
        sent, come = route[0], route[1].sum(axis=1)
        return self._exchange(rows, come, sent)

    def _exchange(self, rows: Array, sent: Array, come: Array) -> Array:
        width = rows.shape[1]
        got = np.empty((int(come.sum()), width), rows.dtype)
        message = np.ascontiguousarray(rows), (sent * width).tolist()
        self.comm.Alltoallv(list(message), [got, (come * width).tolist()])
        return got

    def _by_expert(self, rows: Array, route: tuple[Array, Array]) -> list[Array]:
        """Return the rows of each expert here, of which every rank sent some."""
        pieces = np.split(rows, np.cumsum(route[1].ravel())[:-1])
        return [np.concatenate(pieces[expert :: len(self.experts)]) for expert in range(len(self.experts))]

    def _by_rank(self, parts: list[Array], route: tuple[Array, Array], like: Array) -> Array:
        """Return the rows of all experts here in the order in which they came."""
        if not parts:
            return np.empty((0, like.shape[1]), like.dtype)
        pieces = [np.split(part, np.cumsum(route[1][:, expert])[:-1]) for expert, part in enumerate(parts)]
        return np.concatenate([piece for rank in zip(*pieces) for piece in rank])
