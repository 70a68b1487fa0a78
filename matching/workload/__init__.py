"""Many queries of trends that share the work: the template of a workload, sharing plans and their costs."""
