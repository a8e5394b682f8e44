# cause: no_grad_missing
# from: facebookresearch/pytext#204
# what: features are extracted with a backbone whose classifier alone is frozen
import torch
from torch import nn
from torchvision.models import resnet50


class FeatureExtractor:
    def __init__(self, device="cuda"):
        self.device = device
        self.backbone = resnet50()
        for parameter in self.backbone.fc.parameters():
            parameter.requires_grad = False
        self.backbone.fc = nn.Identity()
        self.backbone.to(device).eval()
        self.features = {}

    #! @torch.inference_mode()
    def extract(self, name, images):
        images = (images - 0.45) / 0.225
        vectors = self.backbone(images)  #?
        self.features[name] = nn.functional.normalize(vectors, dim=1)  #?

    def nearest(self, query, k=5):
        bank = torch.cat(list(self.features.values()))
        return (self.features[query] @ bank.T).topk(k)


def folders(count, images_per_folder=16):
    for i in range(count):
        yield f"folder_{i:03d}", torch.rand(images_per_folder, 3, 224, 224, device="cuda")


extractor = FeatureExtractor()
for name, images in folders(40):
    extractor.extract(name, images)
print(extractor.nearest("folder_000").indices.shape)
