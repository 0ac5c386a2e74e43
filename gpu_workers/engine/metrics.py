"""Prometheus metrics of the engine, read from its scheduler at each scrape."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_workers.engine.scheduler import Scheduler


class SchedulerCollector(Collector):
    """Reads the scheduler's own counts, so that its loop updates no metric objects."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        scheduler = self._scheduler
        gauges = [
            ("running_requests", "Requests that hold a row of the KV cache", scheduler.num_running),
            ("waiting_requests", "Requests that wait for a row", scheduler.num_waiting),
            ("weight_version", "Policy version that is served", scheduler.version),
            ("kv_bytes", "Memory of the KV cache and of cached prefixes", scheduler.kv_bytes),
        ]
        # The text format appends _total to the names of counters.
        counters = [
            ("steps", "Steps of the scheduler", scheduler.num_steps),
            ("sampled_tokens", "Tokens sampled", scheduler.num_sampled),
            ("prefilled_tokens", "Tokens computed by prefill", scheduler.num_prefilled),
            ("reused_tokens", "Prompt tokens found in the prefix cache", scheduler.num_reused),
        ]
        for name, help_text, value in gauges:
            yield GaugeMetricFamily(f"gyre_engine_{name}", help_text, value)
        for name, help_text, value in counters:
            yield CounterMetricFamily(f"gyre_engine_{name}", help_text, value)


def create_registry(scheduler: Scheduler) -> CollectorRegistry:
    """Return a registry of this engine's metrics only, without those of the Python process."""
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(scheduler))
    return registry
