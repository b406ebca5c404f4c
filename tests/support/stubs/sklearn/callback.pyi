from _typeshed import Incomplete

CallbackContext: Incomplete
with_callbacks: Incomplete

class CallbackSupportMixin:
    def _init_callback_context(self, *, max_subtasks: int | None) -> Incomplete: ...
