"""Tenantry's kernel: what runs, stages and jobs may do, as commands inside transactions that their callers own."""

from kernel.blobs import BlobKey, BlobStore, PostgresBlobs, PutAside
from kernel.command import Command, KernelLimits
from kernel.commands.due_promote import DuePromote, DuePromoted
from kernel.commands.idempotency_expire import IdempotencyExpire, KeysExpired
from kernel.commands.job_begin import Begun, JobBegin
from kernel.commands.job_claim import GhostJob, JobClaim, JobsClaimed
from kernel.commands.job_execute import Execution, JobExecute, JobExecuted, claim_named, execute_leased, unexecuted
from kernel.commands.job_heartbeat import Heartbeat, JobHeartbeat, beat_call, heartbeats
from kernel.commands.job_release import JobRelease, JobsReleased
from kernel.commands.job_report import JobReport, LogRow, Progress, Reported, log_rows
from kernel.commands.job_settle import JobSettle, Settled, Settlement
from kernel.commands.job_settle_expected import JobSettleExpected, SettledAsExpected, is_expectable
from kernel.commands.lease_reap_stale import LeaseReapStale, LeasesReaped, ReapedLease
from kernel.commands.run_cancel import RunCancel, RunCancelled
from kernel.commands.run_claim_pending import ClaimedRun, RunClaimPending, RunsClaimed
from kernel.commands.run_create import RunCreate, RunCreated, admission_call
from kernel.commands.run_list_versions import RunListVersions, VersionsListed, WorkflowVersion
from kernel.commands.run_purge import RunPurge, RunsPurged
from kernel.commands.run_reap_stuck import RunReapStuck, StuckReaped
from kernel.commands.run_redrive import RunRedrive, RunRedriven
from kernel.commands.run_transition import RunTransition, RunTransitioned
from kernel.commands.stage_poll_suspended import StagePollSuspended, SuspendedPolled
from kernel.commands.step_signal import StepSignal, StepSignalled
from kernel.commands.step_write import StepWrite, follow_up, has_large_result, needs_follow_up, read_steps
from kernel.commands.worker_tick import Ticked, WorkerTick
from kernel.completion import RunCompletion
from kernel.definition.registry import Registry
from kernel.definition.stage import Stage, stage
from kernel.definition.workflow import PlacedStage, Workflow, WorkflowBuilder, workflow
from kernel.errors import (
    AnnotationError,
    BlobMissingError,
    BuilderError,
    DefinitionVersionConflictError,
    DuplicateStageIdError,
    DuplicateWorkflowError,
    EmptyWorkflowError,
    ExecutionError,
    FieldError,
    IdempotencyKeyReusedError,
    InvalidConfigError,
    InvalidDurationError,
    InvalidInputError,
    InvalidOptionError,
    InvalidOutputError,
    InvalidRequestError,
    JobNotAvailableError,
    KernelError,
    PayloadError,
    PayloadTooLargeError,
    RateLimitedError,
    RunNotFoundError,
    RunNotTerminalError,
    SignalRefusedError,
    StageAbortedError,
    StageOutputMissingError,
    StageTimeoutError,
    StepsNeedAsyncStageError,
    TenantSuspendedError,
    Terminal,
    TransactionRequiredError,
    UnknownRequirementError,
    UnknownStageError,
    UnknownVersionError,
    UnknownWorkflowError,
)
from kernel.events import EventType
from kernel.execution.abort import AbortReason, AbortSignal
from kernel.execution.context import StageContext
from kernel.execution.journal import StageJournal
from kernel.execution.ledger import StepAnswer, StepOp, StepRow
from kernel.execution.outcome import (
    StageCompleted,
    StageFailed,
    StageOutcome,
    StageReleased,
    StageSkipped,
    StageSuspended,
)
from kernel.execution.perform import give_steps, invocation_of
from kernel.execution.stage_runner import StageInvocation, run_stage, run_when
from kernel.execution.step_calls import Step
from kernel.execution.step_execution import StepExecution
from kernel.execution.steps import Steps
from kernel.execution.tracing import ExecutionSpan
from kernel.fence import Fence
from kernel.jobs import LeasedJob
from kernel.kernel import BoundKernel, Kernel, TransactionProvider
from kernel.states import JobStatus, RunStatus, StageStatus
from kernel.step_errors import (
    ChildRunCancelledError,
    ChildRunFailedError,
    DuplicateStepKeyError,
    StepError,
    StepFailedError,
    StepKindMismatchError,
    StepLeaseLostError,
    StepLeaseTooShortError,
    StepLedgerWriteError,
    StepModelMismatchError,
    StepNotReplaySafeError,
    StepResultLostError,
    StepResultNotSerializableError,
    StepTimeoutError,
)

__all__ = [
    "AbortReason",
    "AbortSignal",
    "AnnotationError",
    "Begun",
    "BlobKey",
    "BlobMissingError",
    "BlobStore",
    "BoundKernel",
    "BuilderError",
    "ChildRunCancelledError",
    "ChildRunFailedError",
    "ClaimedRun",
    "Command",
    "DefinitionVersionConflictError",
    "DuePromote",
    "DuePromoted",
    "DuplicateStageIdError",
    "DuplicateStepKeyError",
    "DuplicateWorkflowError",
    "EmptyWorkflowError",
    "EventType",
    "Execution",
    "ExecutionError",
    "ExecutionSpan",
    "Fence",
    "FieldError",
    "GhostJob",
    "Heartbeat",
    "IdempotencyExpire",
    "IdempotencyKeyReusedError",
    "InvalidConfigError",
    "InvalidDurationError",
    "InvalidInputError",
    "InvalidOptionError",
    "InvalidOutputError",
    "InvalidRequestError",
    "JobBegin",
    "JobClaim",
    "JobExecute",
    "JobExecuted",
    "JobHeartbeat",
    "JobNotAvailableError",
    "JobRelease",
    "JobReport",
    "JobSettle",
    "JobSettleExpected",
    "JobStatus",
    "JobsClaimed",
    "JobsReleased",
    "Kernel",
    "KernelError",
    "KernelLimits",
    "KeysExpired",
    "LeaseReapStale",
    "LeasedJob",
    "LeasesReaped",
    "LogRow",
    "PayloadError",
    "PayloadTooLargeError",
    "PlacedStage",
    "PostgresBlobs",
    "Progress",
    "PutAside",
    "RateLimitedError",
    "ReapedLease",
    "Registry",
    "Reported",
    "RunCancel",
    "RunCancelled",
    "RunClaimPending",
    "RunCompletion",
    "RunCreate",
    "RunCreated",
    "RunListVersions",
    "RunNotFoundError",
    "RunNotTerminalError",
    "RunPurge",
    "RunReapStuck",
    "RunRedrive",
    "RunRedriven",
    "RunStatus",
    "RunTransition",
    "RunTransitioned",
    "RunsClaimed",
    "RunsPurged",
    "Settled",
    "SettledAsExpected",
    "Settlement",
    "SignalRefusedError",
    "Stage",
    "StageAbortedError",
    "StageCompleted",
    "StageContext",
    "StageFailed",
    "StageInvocation",
    "StageJournal",
    "StageOutcome",
    "StageOutputMissingError",
    "StagePollSuspended",
    "StageReleased",
    "StageSkipped",
    "StageStatus",
    "StageSuspended",
    "StageTimeoutError",
    "Step",
    "StepAnswer",
    "StepError",
    "StepExecution",
    "StepFailedError",
    "StepKindMismatchError",
    "StepLeaseLostError",
    "StepLeaseTooShortError",
    "StepLedgerWriteError",
    "StepModelMismatchError",
    "StepNotReplaySafeError",
    "StepOp",
    "StepResultLostError",
    "StepResultNotSerializableError",
    "StepRow",
    "StepSignal",
    "StepSignalled",
    "StepTimeoutError",
    "StepWrite",
    "Steps",
    "StepsNeedAsyncStageError",
    "StuckReaped",
    "SuspendedPolled",
    "TenantSuspendedError",
    "Terminal",
    "Ticked",
    "TransactionProvider",
    "TransactionRequiredError",
    "UnknownRequirementError",
    "UnknownStageError",
    "UnknownVersionError",
    "UnknownWorkflowError",
    "VersionsListed",
    "WorkerTick",
    "Workflow",
    "WorkflowBuilder",
    "WorkflowVersion",
    "admission_call",
    "beat_call",
    "claim_named",
    "execute_leased",
    "follow_up",
    "give_steps",
    "has_large_result",
    "heartbeats",
    "invocation_of",
    "is_expectable",
    "log_rows",
    "needs_follow_up",
    "read_steps",
    "run_stage",
    "run_when",
    "stage",
    "unexecuted",
    "workflow",
]
