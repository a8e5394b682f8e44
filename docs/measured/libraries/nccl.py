"""What NCCL takes of a card beyond PyTorch: `nccl.py WORLD` starts so many ranks on one card.

Several ranks on one card are of several hosts to NCCL (NCCL_HOSTID), which talk over sockets of the loopback: what NVLink would add is not seen.
Rank 0 says, after each step, how much the card has lost for each rank.
"""

import json
import os
import subprocess
import sys

WORLD = int(sys.argv[1])
RANK = os.environ.get("RANK")

if RANK is None:
    ranks = []
    for rank in range(WORLD):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29600 + WORLD), LOCAL_RANK="0")
        if WORLD > 1:
            environment.update(NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
        environment.update(
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS="INIT,ALLOC,GRAPH,TUNING",
            NCCL_DEBUG_FILE=os.path.join(os.environ.get("OUT", "/tmp") if rank == 0 else "/tmp", f"nccl-{WORLD}-{rank}.log"),
        )
        ranks.append(subprocess.Popen([sys.executable, __file__, str(WORLD)], env=environment))
    for one in ranks:
        try:
            one.wait(60)
        except subprocess.TimeoutExpired:
            one.kill()
    raise SystemExit

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

rank = int(RANK)
torch.cuda.set_device(0)
store = dist.TCPStore("127.0.0.1", 29700 + WORLD, WORLD, rank == 0)
meetings = 0


def meet():
    global meetings
    meetings += 1
    torch.cuda.synchronize()
    store.add(f"meet{meetings}", 1)
    while store.add(f"meet{meetings}", 0) < WORLD:
        pass


data = torch.ones(16 << 20, device="cuda")
out = torch.ones(16 << 20, device="cuda")
small = torch.ones(WORLD * 1024, device="cuda")
other = torch.empty_like(small)
(data * 2).sum().item()
meet()
first = torch.cuda.mem_get_info()[0]
mine = torch.cuda.memory_reserved()


def say(what):
    meet()
    if rank == 0:
        lost = first - torch.cuda.mem_get_info()[0]
        grown = torch.cuda.memory_reserved() - mine
        print(json.dumps({"nccl": WORLD, "after": what, "each": lost // WORLD - grown}), flush=True)
    meet()


dist.init_process_group("nccl", rank=rank, world_size=WORLD, device_id=torch.device("cuda", 0))
say("init_process_group")
dist.all_reduce(data)
say("all_reduce")
dist.all_reduce(small)
say("small all_reduce")
dist.all_gather_into_tensor(out[: out.numel() // WORLD * WORLD], data[: out.numel() // WORLD].clone())
say("all_gather")
dist.reduce_scatter_tensor(data[: out.numel() // WORLD].clone(), out[: out.numel() // WORLD * WORLD])
say("reduce_scatter")
dist.all_to_all_single(other, small)
say("all_to_all")
second = dist.new_group(list(range(WORLD)))
dist.all_reduce(data, group=second)
say("second group, all_reduce")
third = dist.new_group(list(range(WORLD)), use_local_synchronization=False)
dist.all_reduce(data, group=third)
say("third group, all_reduce")
if rank == 0:
    print(json.dumps({"nccl": WORLD, "after": "version", "each": list(torch.cuda.nccl.version())}), flush=True)
meet()
os._exit(0)
