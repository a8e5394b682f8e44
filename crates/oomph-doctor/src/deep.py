# What PyTorch itself does with its devices, one stage after the other. Before each it says which one comes, so that a child that
# dies or hangs has said where. Imports PyTorch, and makes a CUDA context on each device.
import json
import sys

sys.path = [place for place in sys.path if place]

report = {"stage": None, "device": None, "error": None, "devices": []}


def send(**news):
    report.update(news)
    print(json.dumps(report), flush=True)


def go_through():
    send(stage="import")
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return
    send(stage="driver_start")
    torch.cuda.init()
    for index in range(torch.cuda.device_count()):
        send(stage="context", device=index)
        free, total = torch.cuda.mem_get_info(index)
        report["devices"].append({"name": torch.cuda.get_device_name(index), "free": free, "total": total})
        send(stage="allocation")
        tensor = torch.empty(1024, device=f"cuda:{index}")
        send(stage="kernel")
        tensor.fill_(1)
        torch.cuda.synchronize(index)
        send(stage="copy_back")
        tensor.cpu()


try:
    go_through()
    send(stage=None)
except Exception as error:
    # What CUDA says is in the first line; the others are advice on debugging.
    send(error=f"{type(error).__name__}: {error}".splitlines()[0])
