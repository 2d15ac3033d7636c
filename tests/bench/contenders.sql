-- How many runs of a peer are over: what the bench waits for.

-- name: dbos_done
-- Workflows that succeeded.
select count(*) from dbos.workflow_status as run where run.status = 'SUCCESS'

-- name: procrastinate_done
-- Third tasks that succeeded.
select count(*) from public.procrastinate_jobs as job where job.task_name = 'shift' and job.status = 'succeeded'

-- name: absurd_done
-- Tasks that completed.
select count(*) from absurd.t_bench as task where task.state = 'completed'
