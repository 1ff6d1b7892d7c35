"""A bound on what a process may compute, which holds whatever occupies its threads."""

import resource


def bound_processor_time(seconds: int) -> None:
    """End this process by SIGXCPU once it has computed for so many seconds from now on."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
