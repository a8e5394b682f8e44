"""Run the cases of record_cases.py under other allocator settings, and keep the peaks that the GPU measured.

    python other_settings.py OUT_DIR

What a replay of the default recording says for a setting is held against what the GPU then did
(crates/oomph-replay/tests/other_settings.rs). Rows are written to OUT_DIR/other_settings.jsonl, and a recording under the
default settings of each case beside them.
"""
import json, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ["accumulate", "accumulated_gradients", "checkpointed", "clones", "closure", "deep_unet", "eval_grad",
         "eval_nograd", "foreach", "frozen", "fused", "gan", "kv_cache", "logits", "lstm", "outputs_list", "streams",
         "big_temp", "gpt2_lengths", "llama_lengths", "t5_lengths", "vit_sizes", "mobilenet_eval"]
SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4",
            "max_split_size_mb:128", "roundup_power2_divisions:8", "large_segment_size_mb:64",
            "expandable_segments:True,large_segment_size_mb:12"]


def lengths(count, low, high):
    """Lengths that jump about, the same in every run."""
    return [low + (i * 7919) % (high - low) for i in range(1, count + 1)]


def train(torch, keep, model, batches, **optim):
    optimizer = keep["optim"] = torch.optim.AdamW(model.parameters(), **optim)
    keep["model"] = model
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        out = model(**batch) if isinstance(batch, dict) else model(batch)
        loss = out.loss if hasattr(out, "loss") else out.float().square().mean()
        loss.backward()
        optimizer.step()


def ids(torch, vocab, batch, length):
    x = torch.randint(0, vocab, (batch, length), device="cuda")
    return dict(input_ids=x, labels=x)


def case_gpt2_lengths(torch, keep):
    import transformers as t
    model = t.GPT2LMHeadModel(t.GPT2Config(n_layer=6, n_embd=512, n_head=8)).cuda()
    train(torch, keep, model, [ids(torch, 50257, 4, n) for n in lengths(12, 64, 700)])


def case_llama_lengths(torch, keep):
    import transformers as t
    config = t.LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12, vocab_size=32000)
    model = t.LlamaForCausalLM(config).cuda().bfloat16()
    train(torch, keep, model, [ids(torch, 32000, 3, n) for n in lengths(10, 100, 1500)])


def case_t5_lengths(torch, keep):
    import transformers as t
    model = t.T5ForConditionalGeneration(t.T5Config(d_model=512, d_ff=1024, num_layers=4, vocab_size=20000, decoder_start_token_id=0)).cuda()
    train(torch, keep, model, [ids(torch, 20000, 6, n) for n in lengths(12, 40, 500)])


def case_vit_sizes(torch, keep):
    import torchvision
    model = torchvision.models.convnext_tiny().cuda()
    train(torch, keep, model, [torch.randn(8, 3, n // 32 * 32, n // 32 * 32, device="cuda") for n in lengths(10, 96, 384)], fused=True)


def case_mobilenet_eval(torch, keep):
    import torchvision
    model = keep["model"] = torchvision.models.mobilenet_v3_large().cuda()
    train(torch, keep, model, [torch.randn(16, 3, 160, 160, device="cuda") for _ in range(3)])
    model.eval()
    with torch.no_grad():
        for n in lengths(8, 64, 512):
            model(torch.randn(24, 3, n, n, device="cuda"))


def child(folder, case, conf):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
    sys.path.insert(0, HERE)
    import record_cases, torch

    torch.cuda.init()
    torch.manual_seed(0)
    if not conf:
        record_cases.record(torch)
    keep = {}
    (globals().get("case_" + case) or getattr(record_cases, "case_" + case))(torch, keep)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    if not conf:
        torch.cuda.memory._dump_snapshot(os.path.join(folder, case + ".pickle"))
    print("JSON " + json.dumps(dict(
        case=case, conf=conf, torch=torch.__version__, gpu=torch.cuda.get_device_name(),
        allocated=stats["allocated_bytes.all.peak"], reserved=stats["reserved_bytes.all.peak"],
        allocations=stats["allocation.all.allocated"], requested=stats["requested_bytes.all.allocated"],
        retries=stats["num_alloc_retries"])))


def main():
    folder = sys.argv[1]
    if len(sys.argv) == 4:
        child(folder, sys.argv[2], sys.argv[3])
        return
    os.makedirs(folder, exist_ok=True)

    def run(job):
        case, conf = job
        start = time.time()
        p = subprocess.run([sys.executable, __file__, folder, case, conf], capture_output=True, text=True, timeout=300)
        lines = [l[5:] for l in p.stdout.splitlines() if l.startswith("JSON ")]
        return job, lines, time.time() - start, p.stderr[-500:]

    jobs = [(case, conf) for case in CASES for conf in SETTINGS]
    with ThreadPoolExecutor(8) as workers, open(os.path.join(folder, "other_settings.jsonl"), "w") as out:
        for job, lines, took, err in workers.map(run, jobs):
            if not lines:
                print(job, "FAILED", f"{took:.1f} s", err, flush=True)
            out.writelines(line + "\n" for line in lines)


if __name__ == "__main__":
    main()
