"""The forms a collective is called in: blocking, nonblocking, persistent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple


class Operation(NamedTuple):
    """One collective operation on given buffers, ready to be carried out any number of times."""

    call: Callable[[], Any]
    """The whole operation."""
    start: Callable[[], Any] | None
    """Begins it and returns its request; None where it blocks."""


@dataclass(frozen=True)
class Form:
    """A form of calls: mpi4py's names of its methods, and the operation that a method becomes."""

    name: str
    spell: Callable[[str], str]
    bind: Callable[[Callable[..., Any], Sequence[Any]], tuple[Operation, Callable[[], Any]]]

    def method(self, collective: str) -> str:
        """mpi4py's name of the method.

        >>> [form.method("reduce_scatter") for form in FORMS.values()]
        ['Reduce_scatter', 'Ireduce_scatter', 'Reduce_scatter_init']
        """
        return self.spell(collective)

    def bound(self, comm: Any, collective: str, arguments: Sequence[Any]) -> tuple[Operation, Callable[[], Any]]:
        """Return the operation on a communicator, and what frees what it holds."""
        return self.bind(getattr(comm, self.method(collective)), arguments)

    @contextmanager
    def ready(self, comm: Any, collective: str, arguments: Sequence[Any]) -> Iterator[Operation]:
        """Provide the operation on a communicator; what it holds is freed at the end.

        Collective, for a persistent one.
        """
        operation, free = self.bound(comm, collective, arguments)
        yield operation
        free()  # not after an error: the operation may be in flight


def _nothing() -> None:
    """Free nothing, for a form that holds nothing."""


def _blocking(method: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Operation, Callable[[], Any]]:
    return Operation(partial(method, *arguments), None), _nothing


def _nonblocking(method: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Operation, Callable[[], Any]]:
    return Operation(lambda: method(*arguments).Wait(), partial(method, *arguments)), _nothing


def _persistent(method: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Operation, Callable[[], Any]]:
    request = method(*arguments)

    def start() -> Any:
        request.Start()
        return request

    return Operation(lambda: start().Wait(), start), request.Free


BLOCKING, NONBLOCKING, PERSISTENT = "blocking", "nonblocking", "persistent"
FORMS = {
    form.name: form
    for form in (
        Form(BLOCKING, str.capitalize, _blocking),
        Form(NONBLOCKING, lambda collective: f"I{collective}", _nonblocking),
        Form(PERSISTENT, lambda collective: f"{collective.capitalize()}_init", _persistent),
    )
}
