"""Methods around methods: a wrapper hands everything on to `base` and changes one thing."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from coterie.engine.method import Deployable, Method, Task
from coterie.options import changed

# What crosses, how it trains and what its server does is as inside.
AS_INSIDE = (
    "down", "up", "private", "averages", "compares", "lr_by_row", "plain_steps", "from_own", "by_gradients",
    "one_model", "learns_from_validation", "open", "send", "receive", "confirm", "confirmed", "summed", "unpacked",
    "axes", "shared", "enroll", "step", "dpsgd", "fewest", "host", "refusal", "trace",
)  # fmt: skip


@dataclass(frozen=True)
class Wrapper(Method):
    """Hands everything on to the method it wraps."""

    by_columns: ClassVar[bool] = True

    @property
    def base(self) -> Method:
        """The method inside: the field `method`, unless a class makes its own."""
        inner: Method = self.method  # type: ignore[attr-defined]
        return inner

    def __repr__(self) -> str:
        return brief(self)

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


for name in AS_INSIDE:
    setattr(Wrapper, name, property(attrgetter(f"base.{name}")))


def brief(method: Any) -> str:
    """A method as it is given in Python, without what is as by default."""
    wraps = isinstance(method, Wrapper) and hasattr(method, "options")
    parts = [brief(method.base), changed(method.options)] if wraps else [changed(method)]
    return f"{type(method).__name__}({', '.join(filter(None, parts))})"


def layers(method: Method) -> list[Method]:
    """A method, and those inside its wrappers."""
    return [method, *(layers(method.base) if isinstance(method, Wrapper) else [])]
