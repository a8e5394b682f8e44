# cause: tensors_kept
# from: huggingface/sentence-transformers#522
# what: a notebook collects every layer's token states of a corpus on the card
# kind: notebook
# %%
import torch
from collections import defaultdict
from transformers import RobertaConfig, RobertaModel

device = "cuda"
# %%
config = RobertaConfig(num_hidden_layers=12, hidden_size=768)
with torch.device(device):
    encoder = RobertaModel(config, add_pooling_layer=False)
encoder.eval();
# %%
corpus = {
    "news": [(96, 256)] * 8,
    "reviews": [(96, 192)] * 8,
    "forums": [(64, 320)] * 8,
}

def batches(shapes):
    for shape in shapes:
        ids = torch.randint(5, 50000, shape, device=device)
        yield ids, torch.ones_like(ids)
# %%
states = defaultdict(list)
with torch.no_grad():
    for source, shapes in corpus.items():
        for ids, mask in batches(shapes):
            out = encoder(ids, attention_mask=mask, output_hidden_states=True)  #?
            for depth, hidden in enumerate(out.hidden_states):
                states[source, depth].append(hidden)  #? #! states[source, depth].append(hidden.mean(dim=1))
# %%
for (source, depth), chunks in states.items():
    tokens = sum(chunk.numel() // config.hidden_size for chunk in chunks)
    print(source, depth, tokens)
