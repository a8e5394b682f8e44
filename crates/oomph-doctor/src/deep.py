# What PyTorch itself says of its devices. Imports it, and makes a CUDA context on each.
import json
import sys

sys.path = [place for place in sys.path if place]

import torch

told = {"available": torch.cuda.is_available(), "architectures": list(torch.cuda.get_arch_list()), "devices": []}
if told["available"]:
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        told["devices"].append({"name": torch.cuda.get_device_name(index), "free": free, "total": total})
print(json.dumps(told))
