"""Run directories as a job of many segments leaves them, made without any worker: manifest, receipts and journal."""

import json
from dataclasses import replace

from simulated import messages

from bigkernel.data.atomic_write import write_json
from bigkernel.data.run_directory import Run, write_sealed
from bigkernel.streaming.plan import Receipt, merge_tree, spans

SETTINGS = {"rows": "abc", "statistic.kernel.sigma": "0.7", "versions": "bigkernel 0.1.0, numpy 2"}


def make_run(root, *, segments=40, workers=5, pause=3600.0, journal=True):
    """A job that was killed half way and, after a pause, gone on with to its end."""
    sweep = root / "moments"
    rows = 65_536 * segments
    Run(str(sweep)).begin(SETTINGS, resume=False, plan={"segments": segments, "rows": rows})
    write_json(root / "command.json", {"command": ["/usr/bin/bigkernel", "fit", "a.corpus", "a.model", "--run", "x"]})
    first = list(messages(segments, workers, job="first"))
    died = first[-1][1] + 5
    again = list(messages(segments, workers, job="second", finished=True, seed=1))
    shift = died + pause - again[0][1]
    computed = {}
    lines = []
    for number, (message, time) in enumerate([*first, *((message, time + shift) for message, time in again)]):
        message = {**message, "time": time}
        if message["kind"] in ("job_started", "sweep_started"):
            message["run"] = str(root if message["kind"] == "job_started" else sweep)
        if message["kind"] == "segment":
            receipt = Receipt(**{**message["receipt"], "retries": tuple(message["receipt"]["retries"]), "ended": time})
            if receipt.resumed and number < len(first):  # of a time before the journal
                place = len(computed)
                early = time - 600 + 10 * (place // workers)
                receipt = replace(receipt, worker=f"tcp://10.9.0.{place % workers}:1", ended=early)
                computed[receipt.node] = replace(receipt, resumed=False)
            elif number < len(first):
                computed[receipt.node] = receipt
            elif receipt.node in computed:
                receipt = replace(computed[receipt.node], resumed=True)
            else:
                receipt = replace(receipt, resumed=False)
                computed[receipt.node] = receipt
            message["receipt"] = receipt.to_json()
        lines.append(message)
    if journal:
        (root / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    end = max(receipt.ended for receipt in computed.values())
    for node, (begin, stop) in spans(segments).items():
        if node not in computed:
            held = [computed[f"0-{i}"] for i in range(begin, stop)]
            last = max(held, key=lambda receipt: receipt.ended)
            ended = min(last.ended + 0.5, end + 1)
            computed[node] = replace(last, node=node, start=held[0].start, stop=held[-1].stop, elapsed=0.4, ended=ended)
    for node, receipt in computed.items():
        write_sealed(sweep / "receipts" / f"{node}.json", receipt.to_json())
    (sweep / "partials" / merge_tree(segments)[-1][0]).mkdir()
    return root


def put_into_journal(run, text):
    """Put a text wherever journal and command of a run hold words of others, and a judgement that has it too."""
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    for line in lines:
        for key in ("title", "host", "what", "executor", "text", "worker", "error"):
            if key in line:
                line[key] = text
        if "receipt" in line:
            line["receipt"] |= {"worker": text, "seconds": {text: 1.0}}
    score = {"of": text, "corpus": text, "rows": 3, "error_percent": 50.0, "classes": [text, "b"]}
    score |= {"confusion": [[1, 2], [0, 0]], "worst": {"row": [1], "true": [text], "predicted": ["b"], "margin": [1]}}
    last = {key: lines[-1][key] for key in ("job", "time")}
    lines.insert(-1, {**lines[0], **last, "kind": "figures", "name": "score", "values": score})
    (run / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(run / "command.json", {"command": [text, text]})


def put_figures(run, *figures):
    """Put figures (name, values) into the journal of a run, before its last line."""
    lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    about = {"kind": "figures", "job": "second", "sweep": "", "time": json.loads(lines[-1])["time"]}
    added = [json.dumps({**about, "name": name, "values": values}) + "\n" for name, values in figures]
    (run / "journal.jsonl").write_text("".join([*lines[:-1], *added, lines[-1]]))
