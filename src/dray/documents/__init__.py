"""Documents that the broker keeps beside jobs.

reading          reads documents that another version of dray may have written
lease_token      tokens that prove who holds a job (`app.external`)
worker_registry  a document for each running worker, and one that names the leader; readiness
queue_state      dedicated queues, and queues with jobs that no worker serves
profile          profiles of executors: requests, results, flame graphs
repair_log       repairs that sweeps made, for `dray doctor`
data_loss        detects that the broker has lost its data
"""
