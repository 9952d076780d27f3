"""Methods around methods: a wrapper hands everything on to `base` and changes one thing."""

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.engine.method import Deployable, Method, Task


def _of_base(name: str) -> Any:
    return property(lambda self: getattr(self.base, name))


@dataclass(frozen=True)
class Wrapper(Method):
    """Hands everything on to the method it wraps."""

    by_columns: ClassVar[bool] = True

    @property
    def base(self) -> Method:
        """The method inside: the field `method`, unless a class makes its own."""
        inner: Method = self.method  # type: ignore[attr-defined]
        return inner

    # What crosses, how it trains and what its server does is as inside.

    down = _of_base("down")
    up = _of_base("up")
    private = _of_base("private")
    averages = _of_base("averages")
    compares = _of_base("compares")
    lr_by_row = _of_base("lr_by_row")
    plain_steps = _of_base("plain_steps")
    from_own = _of_base("from_own")
    by_gradients = _of_base("by_gradients")
    learns_from_validation = _of_base("learns_from_validation")
    open = _of_base("open")
    send = _of_base("send")
    receive = _of_base("receive")
    confirm = _of_base("confirm")
    confirmed = _of_base("confirmed")
    summed = _of_base("summed")
    unpacked = _of_base("unpacked")
    axes = _of_base("axes")
    shared = _of_base("shared")
    enroll = _of_base("enroll")
    step = _of_base("step")
    dpsgd = _of_base("dpsgd")
    host = _of_base("host")
    refusal = _of_base("refusal")
    trace = _of_base("trace")

    # The silo's half, where a wrapper may give the method inside something else than it is given.

    def inside(self, task: Task, down: Any, private: Any) -> tuple[Task, Any, Any]:
        """What the method inside is given for this."""
        return task, down, private

    def begin(self, task: Task, down: Any, private: Any) -> Any:
        return self.base.begin(*self.inside(task, down, private))

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        task, down, private = self.inside(task, down, private)
        return self.base.end(task, state, down, private)

    def personal(self, task: Task, down: Any, private: Any) -> Deployable:
        return self.base.personal(*self.inside(task, down, private))

    def cloud(self, task: Task, down: Any, private: Any) -> Deployable | None:
        return self.base.cloud(*self.inside(task, down, private))

    def adapt(self, task: Task, down: Any, private: Any | None) -> tuple[Any | None, Any]:
        return self.base.adapt(*self.inside(task, down, private))
