"""The words of the page: texts and numbers, made from the scheduler's state, for `page.js` to show as text.

Nothing here is markup: titles, paths, errors and names of workers come from outside, and the script of the page puts
them in as text nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bigkernel.data.visible import visible
from bigkernel.monitor.format import duration, eta, flops_rate, percent, size

_STATES = {"lost": "driver lost"}  # what is said instead
_WAITING = "waiting for the first segment"


def chosen(state: Mapping[str, Any], wanted: Sequence[str]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The job and the sweep that the page shows in detail: those `wanted` (ids), or the newest running ones."""
    jobs = {job["id"]: job for job in reversed(state["jobs"])}
    job = jobs.get(wanted[0]) if wanted else None
    job = job or (state["jobs"][0] if state["jobs"] else None)
    if job is None or not job["sweeps"]:
        return job, None
    sweeps = {sweep["token"]: sweep for sweep in job["sweeps"]}
    running = [sweep for sweep in job["sweeps"] if sweep["state"] == "running"]
    return job, sweeps.get(wanted[1] if len(wanted) > 1 else "") or (running or job["sweeps"])[-1]


def jobs_facts(state: Mapping[str, Any], wanted: Sequence[str], address: str) -> dict[str, Any]:
    """The cards of the jobs, running ones first, and where the scheduler is, for the page without any job."""
    job, sweep = chosen(state, wanted)
    return {
        "address": address,
        "followed": not wanted,
        "job": job["id"] if job else "",
        "sweep": sweep["token"] if sweep else "",
        "starting": state.get("starting", 0),
        "workers": _workers(state, sweep),
        "cards": [_card(one) for one in state["jobs"]],
    }


def _workers(state: Mapping[str, Any], sweep: Mapping[str, Any] | None) -> str:
    """ "100 workers, 98 at work, 2 lost": of the scheduler, and of the sweep that is shown."""
    count, shares = len(state["workers"]), (sweep or {}).get("workers", {})
    text = f"{count:,} {'worker' if count == 1 else 'workers'}"
    busy, lost = (sum(bool(share[kind]) for share in shares.values()) for kind in ("running", "lost"))
    return text + (f", {busy:,} at work" if busy else "") + (f", {lost:,} lost" if lost else "")


def _card(job: Mapping[str, Any]) -> dict[str, Any]:
    _, sweep = chosen({"jobs": [job]}, ())
    card = {
        "id": job["id"],
        "title": job["title"],
        "state": job["state"],
        "said": _STATES.get(job["state"], job["state"]),
        "error": job["error"],
        "host": f"{job['host']}, process {job['pid']}" if job["pid"] else job["host"],
        "run": job["run"],
        "elapsed": duration(job["elapsed_seconds"]),
        "ended": job["ended"],
        "sentence": _sentence(job, sweep),
        "sweeps": [_sweep_choice(one, number) for number, one in enumerate(job["sweeps"], 1)],
        **dict.fromkeys(("rows", "merged", "percent", "rate", "left", "between"), ""),
        "shares": dict.fromkeys(("merged", "published", "running"), 0.0),
    }
    if _stepping(job):  # the driver works alone: the sweep before it is no progress of this
        share = job["step"]["done"] / max(1, job["step"]["total"])
        card |= {"percent": percent(share), "shares": {"merged": 0.0, "published": 0.0, "running": share}}
    elif sweep is not None:
        rows, done = max(1, sweep["rows"]), rows_done(sweep)
        # once all rows are done, what is left is merges, whose time nobody knows
        at_rows = job["state"] == sweep["state"] == "running" and done < sweep["rows"]
        left, between = eta(sweep["left_seconds"]) if at_rows else ("", "")
        card |= {
            "rows": f"{sweep['what']}: {done:,} of {sweep['rows']:,} rows",
            "merged": f"{sweep['rows_merged']:,} merged",
            "percent": percent(done, rows),
            "rate": rate(sweep) if sweep["flops_per_second"] else "",
            "left": left,
            "between": between,
            "shares": {
                "merged": sweep["rows_merged"] / rows,
                "published": (sweep["rows_done"] - sweep["rows_merged"]) / rows,
                "running": sweep["rows_under_way"] / rows,
            },
        }
    return card


def _stepping(job: Mapping[str, Any]) -> bool:
    """Whether the driver is at work between two sweeps."""
    return job["state"] == "running" and job["step"] is not None


def rows_done(sweep: Mapping[str, Any]) -> int:
    """Rows that are done, those of running segments included."""
    return int(sweep["rows_done"] + sweep["rows_under_way"])


def _sentence(job: Mapping[str, Any], sweep: Mapping[str, Any] | None) -> str:
    """What a job does now, or how it ended."""
    step = job["step"]
    if job["state"] != "running":
        return f"{_STATES.get(job['state'], job['state'])} after {duration(job['elapsed_seconds'])}"
    if step is not None:
        return f"{step['what']}: {step['done']:,} of {step['total']:,}"
    if sweep is None:
        return "waiting for the first sweep"
    if sweep["state"] != "running":
        return f"{sweep['what']}: {sweep['state']}; the driver goes on"
    if not rows_done(sweep):
        return f"{sweep['what']}: {_WAITING}"
    if rows_done(sweep) == sweep["rows"]:
        return f"{sweep['what']}: all rows done, {sweep['merges_done']:,} of {sweep['merges']:,} merges"
    return f"{sweep['what']}: {rows_done(sweep):,} of {sweep['rows']:,} rows"


def _sweep_choice(sweep: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {"token": sweep["token"], "name": f"{number} {sweep['what']}", "state": sweep["state"]}


def detail_facts(state: Mapping[str, Any], job: Mapping[str, Any], sweep: Mapping[str, Any] | None) -> dict[str, Any]:
    """The texts beside the drawings of one sweep: counts of segments, merges, and the marks of rate and memory."""
    if sweep is None:
        return {"sweep": ""}
    plan, merges = sweep["plan"], max(1, sweep["merges"])
    limits = sorted({worker["limit_bytes"] for worker in state["workers"].values() if worker["limit_bytes"]})
    return {
        "sweep": sweep["what"],
        "map": f"{len(sweep['stops']):,} segments of up to {plan['segment_rows']:,} rows, in the order of the rows",
        "counts": {**sweep["segments"], "resumed": sweep["segments_resumed"]},
        "error": sweep["error"],
        "merges": {
            "text": f"{sweep['merges_done']:,} of {sweep['merges']:,} merges"
            if sweep["merges"]
            else "nothing to merge",
            "done": sweep["merges_done"] / merges if sweep["merges"] else 1.0,
        },
        "rate": {
            "measured": f"mean {flops_rate(sweep['flops_per_second'])}" if sweep["flops_per_second"] else _WAITING,
            "drawn": bool(sweep["rate_history"]),
            "calibrated": flops_rate(sweep["calibrated_flops_per_second"])
            if sweep["calibrated_flops_per_second"]
            else "",
        },
        "memory": {
            "announced": size(sweep["announced_bytes"]) if sweep["announced_bytes"] else "",
            "limit": " to ".join(size(limit) for limit in limits[:: max(1, len(limits) - 1)]) if limits else "",
        },
    }


def log_facts(job: Mapping[str, Any]) -> list[list[Any]]:
    """[seconds since 1970, kind, text] of a job's events, the newest first."""
    return [[event["time"], event["kind"], event["text"]] for event in reversed(job["events"])]


def title(job: Mapping[str, Any] | None, sweep: Mapping[str, Any] | None) -> str:
    """Return the title of the window: "62 % · fit digits · bigkernel"."""
    if job is None:
        return "bigkernel"
    done = ""
    if _stepping(job):
        done = f"{percent(job['step']['done'], max(1, job['step']['total']))} · "
    elif sweep and job["state"] == "running":
        done = f"{percent(rows_done(sweep), max(1, sweep['rows']))} · "
    return f"{done}{visible(job['title'], most=200)} · bigkernel"


def rate(sweep: Mapping[str, Any]) -> str:
    """ "160 GFLOP/s, 84 % of the calibrated 190 GFLOP/s"."""
    measured, calibrated = sweep["flops_per_second"], sweep["calibrated_flops_per_second"]
    share = f", {percent(measured, calibrated)} of the calibrated {flops_rate(calibrated)}" if calibrated else ""
    return flops_rate(measured) + share
