"""Every error the kernel raises, in one tree; each class says in its first line who must act.

KernelError
├── BuilderError                        the author of a workflow
│   ├── InvalidOptionError
│   ├── EmptyWorkflowError
│   ├── DuplicateStageIdError
│   ├── UnknownRequirementError
│   ├── AnnotationError
│   ├── DuplicateWorkflowError
│   └── DefinitionVersionConflictError
├── InvalidDurationError                whoever wrote the duration
├── PayloadError                        whoever made the value
├── TransactionRequiredError            the host
├── BlobMissingError                    the operator
├── InvalidRequestError                 the caller
│   ├── InvalidInputError
│   ├── InvalidConfigError
│   ├── UnknownWorkflowError
│   ├── UnknownVersionError
│   └── UnknownStageError
├── PayloadTooLargeError                the caller
├── IdempotencyKeyReusedError           the caller
├── RunNotFoundError                    the caller
├── RunNotTerminalError                 the caller
├── JobNotAvailableError                the caller
├── SignalRefusedError                  the caller
├── RateLimitedError                    the caller, later
├── TenantSuspendedError                the operator
└── ExecutionError                      the author of a body
    ├── InvalidOutputError
    ├── StageOutputMissingError
    ├── StageTimeoutError
    ├── StageAbortedError
    ├── StepsNeedAsyncStageError
    └── StepError                       (kernel/step_errors.py)
        ├── StepFailedError
        ├── DuplicateStepKeyError
        ├── StepKindMismatchError
        ├── StepNotReplaySafeError
        ├── StepResultNotSerializableError
        ├── StepResultLostError
        ├── StepModelMismatchError
        ├── StepTimeoutError
        ├── StepLeaseLostError
        ├── StepLeaseTooShortError
        ├── StepLedgerWriteError
        ├── ChildRunFailedError
        └── ChildRunCancelledError

`Terminal` stands outside: it is what a body raises to end its own retries. Codes are stable; texts are not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


class KernelError(Exception):
    """What every error of the kernel is; `code` is stable and machine-readable."""

    code: ClassVar[str] = "kernel_error"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault in what was sent: a JSON Pointer to it, a code and a sentence."""

    pointer: str
    code: str
    message: str

    def __str__(self) -> str:
        """Return the fault as one line."""
        return f"{self.pointer}: {self.message}" if self.pointer else self.message


class BuilderError(KernelError):
    """The author must act: a workflow cannot be built as it is written."""

    code = "invalid_definition"


class InvalidOptionError(BuilderError, ValueError):
    """The author must act: an option of a stage or workflow has a value it cannot have."""


class EmptyWorkflowError(BuilderError):
    """The author must act: a workflow, or a parallel group, has no stage."""


class DuplicateStageIdError(BuilderError):
    """The author must act: two stages of a workflow have one id."""


class UnknownRequirementError(BuilderError):
    """The author must act: `requires` names a stage that is not in an earlier group."""


class AnnotationError(BuilderError):
    """The author must act: an annotation is missing, cannot be resolved or has no JSON Schema."""


class DuplicateWorkflowError(BuilderError):
    """The author must act: two workflows of a registry have one id."""


class DefinitionVersionConflictError(BuilderError):
    """The author must act: one declared version stands for two different structures."""

    code = "definition_version_conflict"


class InvalidDurationError(KernelError, ValueError):
    """Whoever wrote it must act: the value is no duration, or none that this option takes."""

    code = "invalid_duration"


class PayloadError(KernelError, ValueError):
    """Whoever made the value must act: it cannot be stored as JSON. `pointer` leads to the fault."""

    code = "payload_not_storable"

    def __init__(self, pointer: str, fault: str, message: str) -> None:
        super().__init__(f"{pointer}: {message}" if pointer else message)
        self.pointer = pointer
        self.fault = fault
        self.message = message

    def below(self, prefix: str) -> FieldError:
        """Return the fault as a field error of a document that holds the value at `prefix`."""
        return FieldError(prefix + self.pointer, self.fault, self.message)


class TransactionRequiredError(KernelError):
    """The host must act: the command was given no transaction and the kernel has no provider of them."""

    code = "transaction_required"


class BlobMissingError(KernelError):
    """For the operator: the store has lost a payload of a run that exists; `digest` is hex."""

    code = "blob_missing"

    def __init__(self, run_id: object, digest: str) -> None:
        self.run_id = run_id
        self.digest = digest
        super().__init__(f"the payload {digest[:12]} of run {run_id} is not in the blob store")


class InvalidRequestError(KernelError):
    """The caller must act: something in the request cannot be accepted. `errors` says what, never empty."""

    code = "invalid_request"

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)))


class InvalidInputError(InvalidRequestError):
    """The caller must act: the input does not fit the workflow's; pointers start with `/input`."""

    code = "invalid_input"


class InvalidConfigError(InvalidRequestError):
    """The caller must act: the config does not fit the stages'; pointers start with `/config`."""

    code = "invalid_config"


class UnknownWorkflowError(InvalidRequestError):
    """The caller must act: no workflow of that id is registered."""

    code = "unknown_workflow"

    def __init__(self, workflow_id: str) -> None:
        self.workflow_id = workflow_id
        super().__init__([FieldError("/workflow", self.code, f"no workflow {workflow_id!r} is registered")])


class UnknownVersionError(InvalidRequestError):
    """The caller must act: this build does not serve that version of the workflow."""

    def __init__(self, workflow_id: str, version: str) -> None:
        self.workflow_id = workflow_id
        self.version = version
        message = f"version {version!r} of workflow {workflow_id!r} is not served"
        super().__init__([FieldError("/definition_version", "unknown_version", message)])


class UnknownStageError(InvalidRequestError):
    """The caller must act: the workflow has no stage of that id."""

    def __init__(self, workflow_id: str, stage_id: str) -> None:
        self.workflow_id = workflow_id
        self.stage_id = stage_id
        message = f"workflow {workflow_id!r} has no stage {stage_id!r}"
        super().__init__([FieldError("/stage_id", "unknown_stage", message)])


class PayloadTooLargeError(KernelError):
    """The caller must act: a payload of `size_bytes` exceeds the limit of `limit_bytes`."""

    code = "payload_too_large"

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"the payload has {size_bytes} bytes, at most {limit_bytes} are accepted")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class IdempotencyKeyReusedError(KernelError):
    """The caller must act: the idempotency key was used for another request."""

    code = "idempotency_key_reused"

    def __init__(self, key: str) -> None:
        super().__init__("the idempotency key was used for another request")
        self.key = key


class RunNotFoundError(KernelError):
    """The caller must act: the tenant has no run of that id."""

    code = "not_found"

    def __init__(self, run_id: object) -> None:
        super().__init__(f"no run {run_id}")
        self.run_id = run_id


class RunNotTerminalError(KernelError):
    """The caller must act: only a run that is over can be redriven."""

    code = "conflict"

    def __init__(self, run_id: object, status: str) -> None:
        super().__init__(f"run {run_id} is {status}, not over")
        self.run_id = run_id
        self.status = status


class JobNotAvailableError(KernelError):
    """The caller must act: the stage has no queued job, or a worker has leased it."""

    code = "conflict"

    def __init__(self, run_id: object, stage_id: str) -> None:
        super().__init__(f"stage {stage_id!r} of run {run_id} has no job that can be taken now")
        self.run_id = run_id
        self.stage_id = stage_id


class SignalRefusedError(KernelError):
    """The caller must act: the run is over, the step timed out or is of another kind."""

    code = "conflict"


class RateLimitedError(KernelError):
    """The caller must try again after `retry_after_s`: the tenant's `limit` is reached."""

    code = "rate_limited"

    def __init__(self, retry_after_s: float, limit: str) -> None:
        super().__init__(f"the tenant's limit {limit} is reached")
        self.retry_after_s = retry_after_s
        self.limit = limit


class TenantSuspendedError(KernelError):
    """The operator must act: the tenant is suspended."""

    code = "tenant_suspended"

    def __init__(self) -> None:
        super().__init__("the tenant is suspended")


class ExecutionError(KernelError):
    """The author must act: a body did what it may not. A class that is not retryable ends the stage."""

    code = "execution_error"
    is_retryable: ClassVar[bool] = True


class InvalidOutputError(ExecutionError):
    """The author must act: what the stage returned does not fit its output model or cannot be stored."""

    code = "invalid_output"
    is_retryable = False

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)))


class StageOutputMissingError(ExecutionError):
    """The author must act: the required stage did not complete in this run."""

    code = "stage_output_missing"
    is_retryable = False

    def __init__(self, stage_id: str, available: Iterable[str]) -> None:
        self.stage_id = stage_id
        self.available = tuple(available)
        names = ", ".join(map(repr, self.available)) or "none"
        super().__init__(f"stage {stage_id!r} has no output in this run; available: {names}")


class StageTimeoutError(ExecutionError):
    """The author must act if it repeats: the attempt did not end within the stage's timeout."""

    code = "stage_timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"timed out after {timeout_s:g} s")
        self.timeout_s = timeout_s


class StageAbortedError(ExecutionError):
    """Nobody must act: the execution was told to stop, `reason` is `cancelled`, `lease-lost` or `shutdown`."""

    code = "stage_aborted"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the stage was aborted: {reason}")
        self.reason = reason


class StepsNeedAsyncStageError(ExecutionError):
    """The author must act: `ctx.step` is there for `async def` stages only."""

    code = "steps_need_async_stage"
    is_retryable = False

    def __init__(self, stage_id: str) -> None:
        super().__init__(f"stage {stage_id!r} is no coroutine function: only `async def` stages have steps")
        self.stage_id = stage_id


class Terminal(Exception):  # noqa: N818 - a body says "this is final", not "an error of the kernel's"
    """Raised by a body to fail its stage for good, whatever attempts are left."""
