"""Methods on patches, written again from their papers in plain loops over images and patches."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.ops import roi_align

from raysl.data.batch import Batch
from raysl.schedule import Step
from tests.trajectories.ours import Course
from tests.trajectories.plain import (
    Plain,
    all_views,
    balanced,
    cosine_course,
    cross_entropy,
    follow,
    log_softmax,
    mean,
    push,
    unit,
    units,
)


class Data2Vec(Plain):
    """Baevski et al. 2022, sections 3.3 and 3.4."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Smooth L1 of hidden patches."""
        images, masks = batch.views["global"].flatten(0, 1), batch.extras["global.mask"].flatten(0, 1)
        beta, terms = self.config.beta, []
        for image, mask in zip(images, masks, strict=True):
            told = self._targets(image[None])
            said = self.net.head(self.net.backbone.tokens(image[None], mask[None])[0, 1:])
            for patch in mask.flatten().nonzero().flatten():
                off = (said[patch] - told[patch]).abs()
                terms.append(torch.where(off < beta, off.square() / (2 * beta), off - beta / 2).mean())
        return mean(terms)

    @torch.no_grad()
    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows, ever more slowly; some parts are the student's."""
        config = self.config
        length = config.momentum_warmup.steps(step.total, step.epoch_len)
        rise = min(step.index / length, 1.0) if length else 1.0
        follow(
            self.net.teacher,
            (self.net.backbone,),
            config.momentum_start + rise * (config.momentum - config.momentum_start),
        )
        if config.shares_embedding:
            teacher, student = self.net.teacher.module, self.net.backbone
            teacher.patch_embed.load_state_dict(student.patch_embed.state_dict())
            teacher.pos_embed.copy_(student.pos_embed)

    @torch.no_grad()
    def _targets(self, images: Tensor) -> Tensor:
        """Mean of the last blocks, each normalised [L, D]."""
        outputs = self.net.teacher.module.stages(images, self.net.layers).values()
        y = sum(normalised(tokens[0, 1:]) for tokens in outputs) / len(self.net.layers)
        return normalised(y) if self.config.is_renormalised else y


def normalised(rows: Tensor, eps: float = 1e-5) -> Tensor:
    """Each row less its mean, over its deviation."""
    parts = [(row - row.mean()) / (row.var(correction=0) + eps).sqrt() for row in rows]
    return torch.stack(parts)


class MaskFeat(Plain):
    """Wei et al. 2022, sections 3.1 and 3.2."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Squared error of hidden patches' histograms."""
        images, masks = batch.views["global"].flatten(0, 1), batch.extras["global.mask"].flatten(0, 1)
        backbone, size, cell = self.net.backbone, self.net.backbone.patch_size, self.config.cell_size
        tokens = backbone.tokens(images, masks)[:, backbone.num_prefix_tokens :]
        terms = []
        for image in range(len(images)):
            across, down = sobel(images[image])
            for row, column in masks[image].nonzero().tolist():
                told = []
                for channel in range(3):
                    counts = torch.zeros(self.config.num_bins, size // cell, size // cell, dtype=torch.float64)
                    for y in range(size):
                        for x in range(size):
                            gx, gy = (
                                part[channel, row * size + y, column * size + x].item() for part in (across, down)
                            )
                            turns = math.atan2(gx, gy) / math.pi % 1
                            number = min(int(turns * self.config.num_bins), self.config.num_bins - 1)
                            counts[number, y // cell, x // cell] += math.hypot(gx, gy)
                    told.append(counts / counts.square().sum(dim=0).sqrt().clamp(min=1e-12))
                said = self.net.head(tokens[image, row * masks.shape[2] + column])
                terms.append((said - torch.stack(told).flatten()).square().mean())
        return mean(terms)


class MixMIM(Plain):
    """Liu et al. 2022, with a Swin whose windows are not shifted: each image of a mix by itself, a place at a time."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Squared error of a mix's two images where the other one lies."""
        images, masks, decoder = all_views(batch), batch.extras["global.mask"].flatten(0, 1), self.net.decoder
        size = images.shape[-1] // masks.shape[-1]
        terms = []
        for number, (image, mask) in enumerate(zip(images, masks, strict=True)):
            other = images[(number + 1) % len(images)]
            for target, is_own in ((image, ~mask), (other, mask)):
                x = self._seen(target, is_own)
                x = [
                    decoder.embed(x[place]) if place in x else decoder.mask_token
                    for place in itertools.product(*map(range, mask.shape))
                ]
                y = (torch.stack(x) + decoder.positions[0])[None]
                for block in decoder.blocks:
                    y = block(y)
                said = decoder.pixels(decoder.norm(y))[0].view(*mask.shape, -1)
                for row, column in (~is_own).nonzero().tolist():
                    at = slice(row * size, (row + 1) * size), slice(column * size, (column + 1) * size)
                    pixels = target[:, *at].permute(1, 2, 0).flatten()
                    if self.config.is_normalised:
                        centred = pixels - pixels.mean()
                        pixels = centred / (centred.square().sum() / (len(pixels) - 1) + 1e-6).sqrt()
                    terms.append((said[row, column] - pixels).square().mean())
        return mean(terms)

    def _seen(self, image: Tensor, is_own: Tensor) -> dict[tuple[int, int], Tensor]:
        """Features of an image's squares in a mix, by row and column, from these squares alone."""
        network = self.net.backbone
        size = network.config.patch_size
        tokens = network.patch_embed(image[None])[0] + network.absolute_pos_embed[0].unflatten(
            0, (image.shape[1] // size, -1)
        )
        x = {
            (row, column): tokens[row, column]
            for row, column in itertools.product(*map(range, tokens.shape[:2]))
            if is_own[row * len(is_own) // len(tokens), column * len(is_own) // len(tokens)]
        }
        for layer in network.layers:
            for block in layer.blocks:
                x = self._block(block, x, layer.window)
            if layer is not network.layers[-1]:
                four = {
                    (row, column): torch.cat([x[2 * row + dy, 2 * column + dx] for dx in (0, 1) for dy in (0, 1)])
                    for row, column in {(row // 2, column // 2) for row, column in x}
                }
                x = {at: layer.downsample.reduction(layer.downsample.norm(row)) for at, row in four.items()}
        return {at: network.norm(row) for at, row in x.items()}

    @staticmethod
    def _block(block: Any, x: dict[tuple[int, int], Tensor], side: int) -> dict[tuple[int, int], Tensor]:
        """A place attends to those of its window."""
        table, heads = block.attn.relative_position_bias_table, block.attn.heads
        windows: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, column in x:
            windows.setdefault((row // side, column // side), []).append((row, column))
        outputs = {}
        for places in windows.values():
            before = torch.stack([x[at] for at in places])
            qkv = block.attn.qkv(block.norm1(before)).view(len(places), 3, heads, -1)
            q, k, v = qkv.unbind(1)  # [n, heads, d]
            seen = []
            for number, (row, column) in enumerate(places):
                offsets = [(row - r + side - 1) * (2 * side - 1) + column - c + side - 1 for r, c in places]
                logits = (k * q[number]).sum(dim=2) / q.shape[2] ** 0.5 + table[offsets]  # [n, heads]
                weights = torch.stack([log_softmax(one).exp() for one in logits.T], dim=1)
                seen.append((weights[:, :, None] * v).sum(dim=0).flatten())
            after = before + block.attn.proj(torch.stack(seen))
            outputs |= dict(zip(places, after + block.mlp(block.norm2(after)), strict=True))
        return outputs


class AIM(Plain):
    """El-Nouby et al. 2024, sections 3.1 and 3.2."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Squared error of the next patch, a patch at a time."""
        images, masks = batch.views["global"].flatten(0, 1), batch.extras["global.mask"].flatten(0, 1).flatten(1)
        backbone, head, size = self.net.backbone, self.net.head, self.net.backbone.patch_size
        across = images.shape[-1] // size
        terms = []
        for image, mask in zip(images, masks, strict=True):
            x = backbone._embed(image[None])[0]
            length = int((~mask).sum())
            for block in backbone.blocks:
                x = self._block(block, x, length)
            tokens = backbone.norm(x)[backbone.num_prefix_tokens :]
            own = []
            for place in range(length, len(mask)):
                row, column = place // across * size, place % across * size
                pixels = image[:, row : row + size, column : column + size].permute(1, 2, 0).flatten()
                if self.config.is_normalised:
                    centred = pixels - pixels.mean()
                    pixels = centred / (centred.square().sum() / (len(pixels) - 1) + 1e-6).sqrt()
                y = head.embed(tokens[place - 1] + head.positions[0, place - 1])
                for block in head.blocks:
                    y = y + block.fc2(block.act(block.fc1(block.norm(y))))
                own.append((head.pixels(head.norm(y)) - pixels).square().mean())
            terms.append(mean(own))
        return mean(terms)

    def _block(self, block: Any, x: Tensor, length: int) -> Tensor:
        """A token attends to those up to itself, and to a prefix of patches."""
        num_prefix, width = self.net.backbone.num_prefix_tokens, x.shape[1] // block.attn.heads
        q, k, v = block.attn.qkv(block.norm1(x)).chunk(3, dim=1)
        rows = []
        for token in range(len(x)):
            end = max(token + 1, num_prefix + length)
            heads = []
            for at in range(0, x.shape[1], width):
                scores = k[:end, at : at + width] @ q[token, at : at + width] / math.sqrt(width)
                heads.append(log_softmax(scores).exp() @ v[:end, at : at + width])
            rows.append(torch.cat(heads))
        x = x + block.attn.proj(torch.stack(rows))
        return x + block.mlp(block.norm2(x))  # type: ignore[no-any-return]


class MIMRefiner(Plain):
    """Alkin et al. 2024, section 3.2; the draws among neighbours are raysl's."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of all heads, one image, large view and other view at a time."""
        net, config, num = self.net, self.config, len(batch)
        groups = [batch.views["global"], batch.views["local"]]
        outputs = [net.backbone.stages(views.flatten(0, 1), net.stages) for views in groups]
        draws = batch.random("neighbors").integers_on(batch.index.device, 2 * len(net.stages), config.num_neighbors)
        self.index, self.newest, total = batch.index, [], torch.zeros((), dtype=torch.float64)
        for head, stage in enumerate(net.stages):
            tokens = [output[stage] if stage == "class" else output[stage][:, 0] for output in outputs]
            h = torch.cat([rows.view(num, -1, rows.shape[-1]) for rows in tokens], dim=1)  # [B, V, W]
            z = net.projectors[head](h.flatten(0, 1))
            p = net.predictors[head](z).view(num, h.shape[1], -1)
            z = z.detach().view(*p.shape)
            self.newest.append(units(z[:, 0]))
            terms = []
            for image in range(num):
                for large in range(2):
                    own = unit(z[image, large])
                    near = self._neighbor(head, own, batch.index[image], draws[image, 2 * head + large])
                    for view in range(p.shape[1]):
                        if view != large:
                            keys = [near if other == image else own for other in range(num)]
                            scores = [unit(p[other, view]) @ keys[other] for other in range(num)]
                            terms.append(-log_softmax(torch.stack(scores) / config.temperature)[image])
            total = total + mean(terms)
        return total

    def after_update(self, batch: Batch, step: Step) -> None:
        """First views enter the queue with the number of their image."""
        for n, image in enumerate(self.index):
            self.net.owners[int(self.net.queue.pointer)] = image
            push(self.net.queue, torch.stack([rows[n] for rows in self.newest])[None])

    def _neighbor(self, head: int, row: Tensor, image: Tensor, place: Tensor) -> Tensor:
        keys = [key[head] for key, owner in zip(self.net.queue.keys, self.net.owners, strict=True) if owner != image]
        return sorted(keys, key=lambda key: -float(key @ row))[int(place)]


class IGPT(AIM):
    """Chen et al. 2020, eq. 2 and 3; the palette is raysl's, which has tests of its own."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self.net.load_state_dict(course.first)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """One image and one pixel at a time."""
        backbone, terms = self.net.backbone, []
        for number, image in enumerate(batch.views["global"].flatten(0, 1)):
            words = [self._word(pixel) for pixel in image.flatten(1).T]
            if self.config.objective == "next":
                x = backbone._embed(image[None])[0]
                for block in backbone.blocks:
                    x = self._block(block, x, 0)
                x, places = backbone.norm(x), list(range(len(words)))  # the class token predicts the first pixel
            else:
                mask = batch.extras["global.mask"].flatten(0, 1)[number]
                x, places = backbone.tokens(image[None], mask[None])[0, 1:], mask.flatten().nonzero().flatten().tolist()
            terms.append(mean(-log_softmax(self.net.head.weight @ x[place])[words[place]] for place in places))
        return mean(terms)

    def _word(self, pixel: Tensor) -> int:
        embed = self.net.backbone.patch_embed
        level = ((pixel * embed.std + embed.mean) * 64).floor().clamp(0, 63)
        return int((embed.colors - (level + 0.5) / 64).square().sum(dim=1).argmin())


class NEPA(AIM):
    """Xu et al. 2025, algorithm 1."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Cosine with the embedding of the next patch, a patch at a time."""
        backbone, terms = self.net.backbone, []
        for image in batch.views["global"].flatten(0, 1):
            x = backbone._embed(image[None])[0]
            rotation = backbone.rope(image[None], backbone.grid(image[None]))[:, 0]
            for block in backbone.blocks:
                x = self._rotated(block, x, rotation)
            tokens, size = backbone.norm(x), backbone.patch_size
            first, conv = backbone.num_prefix_tokens - 1, backbone.patch_embed.proj
            across = image.shape[-1] // size
            for place in range(len(tokens) - 1 - first):
                row, column = place // across * size, place % across * size
                pixels = image[:, row : row + size, column : column + size]
                embedding = (conv.weight * pixels).sum(dim=(1, 2, 3)) + conv.bias
                terms.append(-(unit(tokens[first + place]) * unit(embedding.detach())).sum())
        return mean(terms)

    def _rotated(self, block: Any, x: Tensor, rotation: Tensor) -> Tensor:
        """A token attends to those up to itself; queries and keys of patches are turned in pairs of channels."""
        num_prefix, width = self.net.backbone.num_prefix_tokens, x.shape[1] // block.attn.heads
        q, k, v = block.attn.qkv(block.norm1(x)).chunk(3, dim=1)
        heads = []
        for at in range(0, x.shape[1], width):
            parts = [rows[:, at : at + width] for rows in (q, k)]
            if self.net.backbone.config.qk_norm:
                parts = [normalised(rows, self.net.backbone.config.norm_eps) for rows in parts]
            queries, keys = (self._turned(rows, rotation, num_prefix) for rows in parts)
            rows = []
            for token in range(len(x)):
                end = max(token + 1, num_prefix)
                scores = keys[:end] @ queries[token] / math.sqrt(width)
                rows.append(log_softmax(scores).exp() @ v[:end, at : at + width])
            heads.append(torch.stack(rows))
        x = x + block.ls1(block.attn.proj(torch.cat(heads, dim=1)))
        return x + block.ls2(block.mlp(block.norm2(x)))  # type: ignore[no-any-return]

    def _turned(self, rows: Tensor, rotation: Tensor, num_prefix: int) -> Tensor:
        sines, cosines = rotation  # [N, d]
        half, turned = rows.shape[1] // 2, list(rows[:num_prefix])
        for row, sine, cosine in zip(rows[num_prefix:], sines, cosines, strict=True):
            low, high = row[:half], row[half:]
            parts = [low * cosine[:half] - high * sine[:half], high * cosine[half:] + low * sine[half:]]
            turned.append(torch.cat(parts))
        return torch.stack(turned)


class Pixio(Plain):
    """Yang et al. 2025, figure 2, and MAE's section 3."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Squared error of hidden patches, a patch at a time."""
        images, masks = batch.views["global"].flatten(0, 1), batch.extras["global.mask"].flatten(0, 1).flatten(1)
        backbone, decoder, size = self.net.backbone, self.net.decoder, self.net.backbone.patch_size
        num_prefix, across = backbone.num_prefix_tokens, images.shape[-1] // size
        terms = []
        for image, mask in zip(images, masks, strict=True):
            kept = [*range(num_prefix), *(num_prefix + int(place) for place in (~mask).nonzero())]
            x = backbone._embed(image[None])[:, kept]
            for block in backbone.blocks:
                x = block(x)
            seen = dict(zip(kept, decoder.embed(backbone.norm(x))[0], strict=True))
            rows = [seen.get(place, decoder.mask_token) for place in range(num_prefix + len(mask))]
            y = torch.stack([row + place for row, place in zip(rows, decoder.positions[0], strict=True)])[None]
            for block in decoder.blocks:
                y = block(y)
            for place in mask.nonzero().flatten().tolist():
                row, column = place // across * size, place % across * size
                pixels = image[:, row : row + size, column : column + size].permute(1, 2, 0).flatten()
                centred = pixels - pixels.mean()
                pixels = centred / (centred.square().sum() / (len(pixels) - 1) + 1e-6).sqrt()
                told = decoder.pixels(decoder.norm(y[0, num_prefix + place]))
                terms.append((told - pixels).square().mean())
        return mean(terms)


class CMAE(Plain):
    """Huang et al. 2022, sections 3.2 and 3.3."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Squared error of hidden patches, and the cross entropy of picking the own whole image."""
        images, masks = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0].flatten(1)
        net, size, prefix = self.net, self.net.backbone.patch_size, self.net.backbone.num_prefix_tokens
        pixel_terms, features = [], []
        for image, mask in zip(images, masks, strict=True):
            keep = (~mask).nonzero().T  # [1, K]
            x = net.backbone._embed(image[None])[:, [*range(prefix), *(prefix + keep[0]).tolist()]]
            for block in net.backbone.blocks:
                x = block(x)
            tokens = net.backbone.norm(x)
            said = net.decoder(tokens, keep)[0]
            features.append(mean(net.feature_decoder(tokens, keep)[0]))
            across = image.shape[-1] // size
            for place in mask.nonzero().flatten().tolist():
                row, column = place // across * size, place % across * size
                pixels = image[:, row : row + size, column : column + size].permute(1, 2, 0).flatten()
                centred = pixels - pixels.mean()
                told = centred / (centred.square().sum() / (len(pixels) - 1) + 1e-6).sqrt()
                pixel_terms.append((said[place] - told).square().mean())
        queries = net.predictor(net.projector(torch.stack(features)))
        with torch.no_grad():
            keys = self._keys(batch.views["shifted"][:, 0])
        terms = []
        for number, query in enumerate(queries):
            scores = torch.stack([unit(query) @ unit(key) for key in keys]) / self.config.temperature
            terms.append(-log_softmax(scores)[number])
        return mean(pixel_terms) + self.config.contrast_weight * 2 * self.config.temperature * mean(terms)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows."""
        momentum = cosine_course(step, self.config.momentum, self.config.momentum_end)
        follow(self.net.teacher, (self.net.backbone, self.net.projector), momentum)

    def _keys(self, images: Tensor) -> Tensor:
        """Projections of the mean patch of the last block."""
        backbone, projector = self.net.teacher.module
        means = []
        for image in images:
            x = backbone._embed(image[None])
            for block in backbone.blocks:
                x = block(x)
            means.append(mean(x[0, backbone.num_prefix_tokens :]))
        return projector(torch.stack(means))  # type: ignore[no-any-return]


class CrossMAE(Plain):
    """Fu et al. 2024, sections 3.2 to 3.4."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Squared error of predicted patches, a patch at a time."""
        images = batch.views["global"].flatten(0, 1)
        masks, told = (batch.extras[f"global.{name}"].flatten(0, 1).flatten(1) for name in ("mask", "predicted"))
        backbone, size = self.net.backbone, self.net.backbone.patch_size
        num_prefix, across = backbone.num_prefix_tokens, images.shape[-1] // size
        terms = []
        for image, mask, predicted in zip(images, masks, told, strict=True):
            kept = [*range(num_prefix), *(num_prefix + int(place) for place in (~mask).nonzero())]
            x = backbone._embed(image[None])[:, kept]
            maps = [x[0]]
            for block in backbone.blocks:
                x = block(x)
                maps.append(x[0])
            for place in predicted.nonzero().flatten().tolist():
                row, column = place // across * size, place % across * size
                pixels = image[:, row : row + size, column : column + size].permute(1, 2, 0).flatten()
                centred = pixels - pixels.mean()
                pixels = centred / (centred.square().sum() / (len(pixels) - 1) + 1e-6).sqrt()
                terms.append((self._predicted(maps, place) - pixels).square().mean())
        return mean(terms)

    def _predicted(self, maps: list[Tensor], place: int) -> Tensor:
        """A patch looks at a mixture of maps in each block, with each head by itself."""
        decoder = self.net.decoder
        y = decoder.mask_token + decoder.positions[0, place]
        for weights, norm, block in zip(decoder.mixture, decoder.norms, decoder.blocks, strict=True):
            others = block.kv(norm(sum(weight * tokens for weight, tokens in zip(weights, maps, strict=True))))
            q, (k, v) = block.q(block.norm1(y)), others.chunk(2, dim=1)
            width = len(y) // block.heads
            heads = []
            for at in range(0, len(y), width):
                scores = k[:, at : at + width] @ q[at : at + width] / math.sqrt(width)
                heads.append(log_softmax(scores).exp() @ v[:, at : at + width])
            y = y + block.proj(torch.cat(heads))
            y = y + block.mlp(block.norm2(y))
        return decoder.pixels(decoder.norm(y))  # type: ignore[no-any-return]


def sobel(image: Tensor) -> tuple[Tensor, Tensor]:
    """Differences across and down [C, H, W] of an image, mirrored at its borders without repeating them."""
    side = image.shape[-1]
    places = [1, *range(side), side - 2]
    wide = image[:, places][:, :, places]
    across = sum(
        weight * (wide[:, i : i + side, :side] - wide[:, i : i + side, 2:]) for i, weight in enumerate((1, 2, 1))
    )
    down = sum(
        weight * (wide[:, :side, j : j + side] - wide[:, 2:, j : j + side]) for j, weight in enumerate((1, 2, 1))
    )
    return torch.as_tensor(across), torch.as_tensor(down)


class CAPI(Plain):
    """Darcet et al. 2025: patches of a place are balanced over the images, and hidden ones predicted one by one."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of clusters of all patches, and of their predictions."""
        images, net, config = batch.views["global"].flatten(0, 1), self.net, self.config
        masks, predicted = (batch.extras[f"global.{name}"].flatten(0, 1).flatten(1) for name in ("mask", "predicted"))
        with torch.no_grad():
            patches = net.teacher.module.tokens(images)[:, net.backbone.num_prefix_tokens :]
        codes, clustering, predictions = [], [], []
        for place in range(masks.shape[1]):
            scores = net.clustering(torch.stack([unit(row) for row in patches[:, place]]))
            codes.append(balanced(scores.detach(), config.target_temp, config.sinkhorn_iters))
            clustering.append(cross_entropy(codes[-1], scores / config.clustering_temp))
        for number, image in enumerate(images):
            keep = (~masks[number]).nonzero().T  # [1, T]
            tokens = net.backbone.visible_tokens(image[None], keep)
            for place in predicted[number].nonzero().flatten():
                z = net.predictor(tokens, image[None], keep, place.view(1, 1))[0, 0]
                rows = zip(net.head.weight, net.head.scale[:, 0], strict=True)
                scores = torch.stack([scale * (unit(row) @ unit(z)) for row, scale in rows])
                predictions.append(-(codes[place][number] * log_softmax(scores / config.temperature)).sum())
        return mean(clustering) + mean(predictions)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows, at first faster with each update, then slower along a part of half a cosine."""
        config = self.config
        length = config.momentum_warmup.steps(step.total, step.epoch_len)
        if step.index < length:
            share = 1.0 + step.index / length * (config.momentum - 1.0)
        else:
            turn = math.pi * config.momentum_part * (step.index - length) / (step.total - length)
            share = config.momentum_end + (config.momentum - config.momentum_end) * (1 + math.cos(turn)) / 2
        follow(self.net.teacher, (self.net.backbone,), share)


class PMSN(Plain):
    """Assran et al. 2022: anchors of both sizes against the target, and the mean prediction against a power law."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """One pass for each size; the divergence is of the mean over all anchors of all images."""
        config, net = self.config, self.net
        large, masks = batch.views["global"], batch.extras["global.mask"][:, 1].flatten(1)
        tokens = [
            net.backbone.visible_tokens(image[None], (~mask).nonzero().T)[0, 0]
            for image, mask in zip(large[:, 1], masks, strict=True)
        ]
        anchors = [net.projector(torch.stack(tokens))]
        small = net.projector(net.backbone.tokens(batch.views["local"].flatten(0, 1))[:, 0])
        anchors += small.unflatten(0, batch.views["local"].shape[:2]).unbind(1)
        with torch.no_grad():
            target = net.teacher_projector.module(net.teacher.module.tokens(large[:, 0])[:, 0])
        told = [self._shares(row, config.temperature * config.sharpening).detach() for row in target]
        said = [[self._shares(row, config.temperature) for row in view] for view in anchors]
        terms = [-(code * share.log()).sum() for view in said for code, share in zip(told, view, strict=True)]
        center = mean(share for view in said for share in view)
        prior = torch.arange(1, len(center) + 1, dtype=torch.float64) ** -config.prior_exponent
        divergence = (center * (center / (prior / prior.sum())).log()).sum()
        return mean(terms) + config.entropy_weight * divergence

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows along a straight line."""
        begin, end = self.config.momentum, self.config.momentum_end
        share = begin + (end - begin) * step.index / step.total
        follow(self.net.teacher, (self.net.backbone,), share)
        follow(self.net.teacher_projector, (self.net.projector,), share)

    def _shares(self, row: Tensor, temperature: float) -> Tensor:
        """Softmax over prototypes [K] of a row [D]."""
        return log_softmax(units(self.net.prototypes) @ unit(row) / temperature).exp()


class IJEPA(Plain):
    """Assran et al. 2023, section 3: one image and one block at a time, so that nothing is filled up."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Smooth L1, or the square, of all patches of all blocks."""
        images = batch.views["global"].flatten(0, 1)
        hidden = batch.extras["global.mask"].flatten(0, 1).flatten(1)
        blocks = batch.extras["global.targets"].flatten(0, 1).flatten(2)
        terms = []
        for image, hides, own in zip(images, hidden, blocks, strict=True):
            told = self._targets(image[None])
            keep = (~hides).nonzero().T  # [1, K]
            context = self.net.backbone.visible_tokens(image[None], keep)[:, 1:]
            for block in own:
                wanted = block.nonzero().T[None]  # [1, 1, T]
                is_there = (torch.ones_like(keep, dtype=torch.bool), torch.ones_like(wanted, dtype=torch.bool))
                said = self.net.predictor(context, keep, is_there[0], wanted, is_there[1])[0, 0]
                for place, row in zip(wanted[0, 0], said, strict=True):
                    off = (row - told[place]).abs()
                    if self.config.loss == "l2":
                        terms.append(off.square().mean())
                    else:
                        terms.append(torch.where(off < 1, off.square() / 2, off - 0.5).mean())
        return mean(terms)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows along a straight line."""
        begin, end = self.config.momentum, self.config.momentum_end
        follow(self.net.teacher, (self.net.backbone,), begin + (end - begin) * step.index / step.total)

    @torch.no_grad()
    def _targets(self, images: Tensor) -> Tensor:
        return normalised(self.net.teacher.module.tokens(images)[0, 1:])


class SALT(Plain):
    """Li et al. 2025: one image at a time, so that nothing is filled up."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Absolute error of the teacher's hidden patches, or squared error of their pixels."""
        images, terms = batch.views["global"].flatten(0, 1), []
        hidden = batch.extras["global.mask"].flatten(0, 1).flatten(1)
        blocks = batch.extras["global.targets"].flatten(0, 1).flatten(2)
        for image, hides, own in zip(images, hidden, blocks, strict=True):
            keep, wanted = (~hides).nonzero().T, own.any(dim=0).nonzero().T[None]  # [1, K], [1, 1, T]
            context = self.net.backbone.visible_tokens(image[None], keep)[:, 1:]
            is_there = torch.ones_like(keep, dtype=torch.bool), torch.ones_like(wanted, dtype=torch.bool)
            said = self.net.predictor(context, keep, is_there[0], wanted, is_there[1])[0, 0]
            with torch.no_grad():
                told = self._targets(image)[wanted[0, 0]]
            errors = [row - other for row, other in zip(said, told, strict=True)]
            terms.append(mean([off.abs().mean() if self.net.teacher else off.square().mean() for off in errors]))
        return mean(terms)

    def _targets(self, image: Tensor) -> Tensor:
        """The teacher's patches, or pixels that are normalised patch by patch [L, E]."""
        if self.net.teacher:
            return self.net.teacher.tokens(image[None])[0, 1:]  # type: ignore[no-any-return]
        size, rows = self.net.backbone.patch_size, []
        for row in range(0, image.shape[1], size):
            for column in range(0, image.shape[2], size):
                pixels = image[:, row : row + size, column : column + size].permute(1, 2, 0).flatten()
                centred = pixels - pixels.mean()
                rows.append(centred / (centred.square().sum() / (len(pixels) - 1) + 1e-6).sqrt())
        return torch.stack(rows)


class DINOv2(Plain):
    """Oquab et al. 2023, section 4."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of class tokens, hidden patches and KoLeo."""
        config, net, large = self.config, self.net, batch.views["global"]
        masks = batch.extras["global.mask"].flatten(2)  # [B, G, N]
        views = [net.backbone.tokens(large[:, view], batch.extras["global.mask"][:, view]) for view in range(2)]
        features = [tokens[:, 0] for tokens in views]
        small = batch.views.get("local")
        features += [
            net.backbone.tokens(small[:, view])[:, 0] for view in range(0 if small is None else small.shape[1])
        ]
        scores = self._scores(net.head, torch.stack(features, dim=1))  # [B, V, K]
        class_codes, patch_codes = self._codes(large, masks, step)
        class_terms = [
            cross_entropy(class_codes[:, told], scores[:, said] / config.temperature)
            for told in range(2)
            for said in range(len(features))
            if told != said
        ]
        patch_terms = []
        for image in range(len(batch)):
            for view in range(2):
                hidden = masks[image, view].nonzero().flatten()
                said = self._scores(net.patch_head, views[view][image, net.backbone.num_prefix_tokens :])
                own = [
                    -(patch_codes[image, view, int(place)] * log_softmax(said[place] / config.temperature)).sum()
                    for place in hidden
                ]
                patch_terms.append(mean(own) if own else said.sum() * 0)
        spread = sum(koleo(features[view]) for view in range(2))
        return (  # type: ignore[no-any-return]
            config.class_weight * mean(class_terms)
            + config.patch_weight * mean(patch_terms)
            + config.koleo_weight * spread
        )

    def after_backward(self, step: Step) -> None:
        """Hold the prototypes for a while."""
        if not self.config.freeze_last_layer.is_over(step):
            for head in (self.net.head, self.net.patch_head):
                for parameter in head.last.parameters():
                    parameter.grad = None

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows."""
        momentum = cosine_course(step, self.config.momentum, self.config.momentum_end)
        follow(self.net.teacher, (self.net.backbone,), momentum)
        follow(self.net.teacher_head, (self.net.head,), momentum)
        follow(self.net.teacher_patch_head, (self.net.patch_head,), momentum)

    def _scores(self, head: Any, rows: Tensor) -> Tensor:
        """Scores of prototypes [..., K] of features [..., D]."""
        return head(rows)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _codes(self, large: Tensor, masks: Tensor, step: Step) -> tuple[Tensor, dict[tuple[int, int, int], Tensor]]:
        """Balanced over all large views, and over all hidden patches."""
        config, net, teacher = self.config, self.net, self.net.teacher.module
        length = config.teacher_temp_warmup.steps(step.total, step.epoch_len)
        rise = min(step.index / length, 1.0) if length else 1.0
        temperature = config.teacher_temp_start + rise * (config.teacher_temp - config.teacher_temp_start)
        tokens = torch.stack([teacher.tokens(large[:, view]) for view in range(2)], dim=1)  # [B, 2, 1 + N, D]
        told = self._scores(net.teacher_head.module, tokens[:, :, 0])  # [B, 2, K]
        class_codes = balanced(told.flatten(0, 1), temperature, config.sinkhorn_iters).view_as(told)
        places: Any = [tuple(place) for place in masks.nonzero().tolist()]
        patches = torch.stack([tokens[image, view, teacher.num_prefix_tokens + at] for image, view, at in places])
        codes = balanced(self._scores(net.teacher_patch_head.module, patches), temperature, config.sinkhorn_iters)
        return class_codes, dict(zip(places, codes, strict=True))


class Franca(DINOv2):
    """Venkataramanan et al. 2025: the losses of DINOv2 for each of several heads, and KoLeo once; the heads are those
    of their code, mrl_dino_head.py."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """The sum over the levels, less the KoLeo that each but the first repeats."""
        net, large, masks = self.net, batch.views["global"], batch.extras["global.mask"]
        terms = []
        for number in range(len(net.head.levels)):
            self.net = SimpleNamespace(
                backbone=net.backbone,
                teacher=net.teacher,
                head=net.head.levels[number],
                patch_head=net.patch_head.levels[number],
                teacher_head=SimpleNamespace(module=net.teacher_head.module.levels[number]),
                teacher_patch_head=SimpleNamespace(module=net.teacher_patch_head.module.levels[number]),
            )
            terms.append(super().loss(batch, step))
        self.net = net
        spread = sum(koleo(net.backbone.tokens(large[:, view], masks[:, view])[:, 0]) for view in range(2))
        return sum(terms) - (len(terms) - 1) * self.config.koleo_weight * spread  # type: ignore[no-any-return]

    def _scores(self, head: Any, rows: Tensor) -> Tensor:
        """Scores [..., K] of features [..., D]: all channels to the width of the level, then layers that each end in a
        GELU, then prototypes of trained lengths."""
        z = rows @ head.projection.weight.T + head.projection.bias
        for layer in head.mlp:
            if isinstance(layer, torch.nn.Linear):
                x = z @ layer.weight.T + layer.bias
                z = x * (1 + torch.erf(x / math.sqrt(2))) / 2
        prototypes = [scale * unit(row) for row, scale in zip(head.last.weight, head.last.scale, strict=True)]
        return z @ torch.stack(prototypes).T

    def after_backward(self, step: Step) -> None:
        """Hold the prototypes of all levels for a while."""
        if not self.config.freeze_last_layer.is_over(step):
            for level in (*self.net.head.levels, *self.net.patch_head.levels):
                for parameter in level.last.parameters():
                    parameter.grad = None


class PaKA(DINOv2):
    """Yeo et al. 2025: DINOv2, and the alignment of the centred kernels of a small view's patches."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """DINOv2's, and that of each small view of each image."""
        net, views, boxes = self.net, batch.views, batch.extras
        prefix, terms = net.backbone.num_prefix_tokens, []
        for image in range(len(batch)):
            for number in range(views["paka"].shape[1]):
                around = number % 2
                said = net.paka_head(net.backbone.tokens(views["paka"][image, [number]])[0, prefix:])
                with torch.no_grad():
                    tokens = net.teacher.module.tokens(views["clean"][image, [around]])[0, prefix:]
                    outer, inner = boxes["clean.box"][image, around], boxes["paka.box"][image, number]
                    told = net.teacher_paka_head.module(self._read(tokens, outer, inner, round(len(said) ** 0.5)))
                ours, theirs = self._centred(said), self._centred(told)
                terms.append(1 - (ours * theirs).sum() / (ours.square().sum() * theirs.square().sum()).sqrt())
        return super().loss(batch, step) + self.config.paka_weight * mean(terms)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teachers follow."""
        super().after_update(batch, step)
        momentum = cosine_course(step, self.config.momentum, self.config.momentum_end)
        follow(self.net.teacher_paka_head, (self.net.paka_head,), momentum)

    @staticmethod
    def _read(tokens: Tensor, outer: Tensor, inner: Tensor, side: int) -> Tensor:
        """The teacher's patches at those of a small view: torchvision's RoIAlign of maps that are turned back."""
        grid = round(len(tokens) ** 0.5)
        (top, left, bottom, right), (y, x, end_y, end_x) = outer.double().tolist()[:4], inner.double().tolist()[:4]
        maps = tokens.T.reshape(1, -1, grid, grid)
        maps = maps.flip(3) if right < left else maps
        low, high = min(left, right), max(left, right)
        near, far = min(x, end_x), max(x, end_x)
        rows, columns = grid / (bottom - top), grid / (high - low)
        roi = [0, (near - low) * columns, (y - top) * rows, (far - low) * columns, (end_y - top) * rows]
        found = roi_align(maps, torch.tensor([roi], dtype=maps.dtype), side, sampling_ratio=2, aligned=True)
        return (found.flip(3) if end_x < x else found)[0].flatten(1).T

    @staticmethod
    def _centred(z: Tensor) -> Tensor:
        """The kernel of patches [N, D], less the means of its rows and columns, plus that of all."""
        kernel = torch.stack([torch.stack([one @ other for other in z]) for one in z])
        rows, columns = kernel.mean(dim=1, keepdim=True), kernel.mean(dim=0, keepdim=True)
        return kernel - rows - columns + kernel.mean()


class DINOv3(DINOv2):
    """Simeoni et al. 2025, section 4.2: small views count less, and a third network anchors the cosines of patches."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """DINOv2's with another weight of small views, and Gram anchoring."""
        config, net, views = self.config, self.net, batch.views
        large = Batch({"global": views["global"]}, batch.index, batch.label, extras=batch.extras, seed=batch.seed)
        num = views["global"].shape[1] + (views["local"].shape[1] if "local" in views else 0)
        share = (views["global"].shape[1] - 1) / (num - 1)
        whole, alone = super().loss(batch, step), super().loss(large, step)
        class_part = whole - alone  # all but the class tokens' loss is the same in both
        total = whole + (config.local_weight - 1) * (class_part + (1 - share) * self._class_loss(large, step))
        grid, prefix = 4, net.backbone.num_prefix_tokens
        terms = []
        for view in range(2):
            seen = net.backbone.tokens(views["global"][:, view], batch.extras["global.mask"][:, view])[:, prefix:]
            with torch.no_grad():
                target = net.gram_teacher.module.tokens(views["gram"][:, view])[:, prefix:]
            side = round(target.shape[1] ** 0.5)
            for ours, theirs in zip(seen, target, strict=True):
                small = interpolate(theirs.T.reshape(1, -1, side, side), size=(grid, grid), mode="bicubic")
                anchors = small[0].flatten(1).T
                terms += [
                    (unit(ours[a]) @ unit(ours[b]) - unit(anchors[a]) @ unit(anchors[b])).square()
                    for a in range(grid**2)
                    for b in range(grid**2)
                ]
        return total + config.gram_weight * mean(terms)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teachers follow."""
        super().after_update(batch, step)
        period = self.config.gram_update_every.steps(step.total, step.epoch_len)
        done = step.index + 1
        if done % period == 0 and done // period <= self.config.gram_updates:
            follow(self.net.gram_teacher, (self.net.teacher.module,), 0.0)

    def _scores(self, head: Any, rows: Tensor) -> Tensor:
        """Linear layers with GELU between them, the unit sphere, and a linear layer whose rows have any length."""
        z = rows.flatten(0, -2)
        for layer in head.mlp:
            z = z @ layer.weight.T + layer.bias if hasattr(layer, "weight") else z * (1 + torch.erf(z / 2**0.5)) / 2
        return (units(z) @ head.last.weight.T).view(*rows.shape[:-1], -1)

    def _class_loss(self, batch: Batch, step: Step) -> Tensor:
        """That of class tokens of the large views alone."""
        config, net, large = self.config, self.net, batch.views["global"]
        class_codes, _ = self._codes(large, batch.extras["global.mask"].flatten(2), step)
        scores = [
            self._scores(net.head, net.backbone.tokens(large[:, view], batch.extras["global.mask"][:, view])[:, 0])
            for view in range(2)
        ]
        return mean([cross_entropy(class_codes[:, 1 - view], scores[view] / config.temperature) for view in range(2)])


def koleo(h: Tensor) -> Tensor:
    """-log of the distance to the nearest other embedding, mean over the batch."""
    rows = [unit(row) for row in h]
    terms = []
    for place, row in enumerate(rows):
        nearest = max(
            (other for number, other in enumerate(rows) if number != place), key=lambda other: float(row @ other)
        )
        terms.append(-((row - nearest).square().sum().sqrt() + 1e-8).log())
    return mean(terms)


VITS = {
    "aim": (AIM, ()),
    "aim-plain": (AIM, ("method.is_normalised=false",)),
    "capi": (CAPI, ("method.clustering_lr_scale=1", "method.momentum_warmup=2st", "method.num_clusters=16")),
    "cmae": (CMAE, ()),
    "cross_mae": (CrossMAE, ()),
    "data2vec": (Data2Vec, ()),
    "franca": (Franca, ("method.head.norm=false", "method.patch_head.norm=false")),
    "ijepa": (IJEPA, ()),
    "igpt": (IGPT, ()),
    "igpt-masked": (IGPT, ("method.objective=masked", "backbone.causal=false", "backbone.mask_token=true")),
    "mim_refiner": (MIMRefiner, ("method.queue_size=32",)),
    "nepa": (NEPA, ()),
    "nepa-qk": (NEPA, ("backbone.qk_norm=true", "backbone.norm_eps=1e-12", "backbone.layer_scale=0.5")),
    "mixmim": (MixMIM, ("method.decoder_width=16", "method.decoder_depth=1")),
    "mixmim-whole": (
        MixMIM,
        (
            "method.decoder_width=16",
            "method.decoder_depth=1",
            "method.mask_ratio=0.25",
            "method.is_normalised=false",
            "backbone.windows=[8,4]",
        ),
    ),
    "maskfeat": (MaskFeat, ("method.cell_size=2",)),
    "salt": (SALT, ()),
    "salt-pixels": (SALT, ("method.teacher=null", "method.target=pixels")),
    "dino_v2": (DINOv2, ("method.head.norm=false", "method.patch_head.norm=false")),
    "dino_v3": (DINOv3, ("method.head.norm=false", "method.patch_head.norm=false", "backbone.rope_rescale=1")),
    "paka": (PaKA, ("method.head.norm=false", "method.patch_head.norm=false")),
    "pixio": (Pixio, ()),
    "pmsn-small": (PMSN, ()),
}
"""As `CONVNETS`."""
