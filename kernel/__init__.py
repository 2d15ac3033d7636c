"""Tenantry's kernel: what runs, stages and jobs may do, as commands inside transactions that their callers own."""

from kernel.command import Command, KernelLimits
from kernel.commands.due_promote import DuePromote, DuePromoted
from kernel.commands.idempotency_expire import IdempotencyExpire, KeysExpired
from kernel.commands.job_begin import Begun, JobBegin
from kernel.commands.job_claim import GhostJob, JobClaim, JobsClaimed
from kernel.commands.job_execute import JobExecute, JobExecuted
from kernel.commands.job_heartbeat import Heartbeat, JobHeartbeat, beat_call, heartbeats
from kernel.commands.job_release import JobRelease, JobsReleased
from kernel.commands.job_report import JobReport, Progress, Reported
from kernel.commands.job_settle import JobSettle, Settled, Settlement
from kernel.commands.lease_reap_stale import LeaseReapStale, LeasesReaped, ReapedLease
from kernel.commands.run_cancel import RunCancel, RunCancelled
from kernel.commands.run_claim_pending import ClaimedRun, RunClaimPending, RunsClaimed
from kernel.commands.run_create import RunCreate, RunCreated
from kernel.commands.run_purge import RunPurge, RunsPurged
from kernel.commands.run_reap_stuck import RunReapStuck, StuckReaped
from kernel.commands.run_transition import RunTransition, RunTransitioned
from kernel.commands.worker_tick import Ticked, WorkerTick
