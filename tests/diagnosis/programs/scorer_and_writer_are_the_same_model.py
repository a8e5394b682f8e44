# cause: copy_of_weights
# from: common
# what: the same large model is built twice, once to write and once to score, where one instance serves both
import torch
import torch.nn as nn
import torch.nn.functional as F


class Decoder(nn.Module):
    def __init__(self, vocabulary=32000, width=4096, layers=18):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 32, 4 * width, 0.0, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def load_model():
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = Decoder()  #?
    torch.set_default_dtype(torch.float32)
    return model.eval()


@torch.inference_mode()
def write(model, tokens, count):
    for _ in range(count):
        nearest = model(tokens)[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, nearest], 1)
    return tokens


@torch.inference_mode()
def score(model, tokens):
    logits = model(tokens[:, :-1])
    return -F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


writer = load_model()
scorer = load_model()  #? #! scorer = writer
for prompt in range(3):
    tokens = torch.randint(0, 32000, (4, 256), device="cuda")
    answer = write(writer, tokens, 4)
    print(prompt, score(scorer, answer).item())
