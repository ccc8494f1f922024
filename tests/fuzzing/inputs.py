"""The inputs: for each reader valid files and the commands that read them, and for each command valid words."""

import gzip
import json
import random
import re
import struct
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import click

from quadrille.algorithms.formats.chakra import COLLECTIVE, COMPUTE, ChakraNode, trace_bytes
from quadrille.cli.main import app
from tests.fuzzing.mutations import (
    HOSTILE_TEXTS,
    json_text,
    mutated_bytes,
    mutated_lines,
    mutated_tree,
    mutated_words,
    toml_text,
)
from tests.support.fabric_files import FABRICS
from tests.support.kineto_traces import events, trace_text
from tests.support.nsight_reports import write_report
from tests.support.training_logs import megatron_log

SMALL = ["--matmul", "64,64,64", "--grid", "z=2"]
TRAINING = ["--grid", "x=2,z=2", "--batch", "4", "--machine", "perlmutter"]
GPT = "layers=2,hidden=32,heads=4,sequence=16,vocabulary=256"
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 256, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 32, "vocab_size": 256}
XML = (
    '<?xml version="1.0"?>\n<platform version="4.1"><zone id="w" routing="Full">'
    '<cluster id="c" prefix="a" suffix="" radical="0-3" speed="1Gf" bw="125MBps" lat="50us" core="2"/></zone></platform>',
    '<platform version="4.1"><zone id="w" routing="Full"><host id="a" speed="1Gf"/><host id="b" speed="2Gf" core="4"/>'
    '<link id="l" bandwidth="1GBps" latency="1us" sharing_policy="SPLITDUPLEX"/>'
    '<route src="a" dst="b"><link_ctn id="l" direction="UP"/></route></zone></platform>',
    '<platform version="4.1"><zone id="w" routing="Full"><cluster id="f" prefix="n" suffix="" radical="0-15" speed="1Gf" '
    'bw="1GBps" lat="1us" topology="FAT_TREE" topo_parameters="2;4,4;1,2;1,2"/></zone></platform>',
    '<platform version="4.1"><zone id="w" routing="Full"><cluster id="t" prefix="n" suffix="" radical="0-7" speed="1Gf" '
    'bw="1GBps" lat="1us" topology="TORUS" topo_parameters="2,2,2"/></zone></platform>',
    '<platform version="4.1"><zone id="w" routing="Full"><cluster id="d" prefix="n" suffix="" radical="0-15" speed="1Gf" '
    'bw="1GBps" lat="1us" topology="DRAGONFLY" topo_parameters="2,1;2,1;2,1;2"/></zone></platform>',
)  # fmt: skip
JOBS = (
    {"j.json": {"--num-layers": 2, "--hidden-size": 64, "--num-attention-heads": 4, "--seq-length": 32, "--bf16": True,
                "--micro-batch-size": 1, "--vocab-size": 100, "--num-experts": 8, "--moe-layer-freq": "[0]*1+[1]*1"}},
    {"m.json": {"hidden_size": 64, "head_num": 8, "kv_head_num": 2, "head_size": 8, "intermediate_size": 96, "layer_num": 4,
                "vocab_size": 256, "expert_num": 4, "topk": 2},
     "s.json": {"seq_len": 32, "micro_batch_size": 1, "micro_batch_num": 8, "world_size": 8, "tp_size": 1, "pp_size": 2,
                "ep_size": 4, "etp_size": 1, "interleaving_size": 1, "zero_state": 1}},
    {"a.json": {"hidden": 64, "feedforward": 256, "seq_size": 32, "attn_heads": 8, "attn_size": 8, "num_blocks": 4},
     "e.json": {"num_procs": 8, "tensor_par": 2, "pipeline_par": 2, "data_par": 2, "batch_size": 16, "microbatch_size": 2,
                "datatype": "float16", "activation_recompute": "full", "optimizer_sharding": True}},
    {"d.json": {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
                "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}},
    {"t.json": {"model": {"name": "llama3", "flavor": "8B"}, "training": {"local_batch_size": 2, "seq_len": 4096},
                "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 2}}},
    {"c.json": CONFIG},
    {"b.yaml": "model:\n  num_layers: 4\n  hidden_size: 64\n  num_attention_heads: 8\n  seq_length: 32\n  vocab_size: 250\n"
               "train:\n  micro_batch_size: 1\n  global_batch_size: 8\nmixed_precision: bf16_mixed\n"},
)  # fmt: skip
"""The files of a job in each format."""
GOAL = (
    "num_ranks 3\nrank 0 {\na: calc 500 cpu 0\nb: send 4096b to 1 tag 2 cpu 1\nb requires a\n}\n/* c */\n"
    "rank 1 {\na: recv 4096b from 0 tag 2\nb: send 8b to 2\nb irequires a\n}\nrank 2 {\nrecv 8b from 1 nic 1 // d\n}\n"
)
SIMAI = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 4 checkpoints: 0\n2\n"
    "grad -1 1 NONE 0 1 ALLREDUCE 4096 1 REDUCESCATTER_DP_EP 4096 100\nmlp -1 700 ALLGATHER 4096 9 ALLTOALL_EP 64 7 NONE 0 0\n"
)
TRAFFIC = "source,destination,bytes,start_s\n0,1,1000000,0\n1,2,5e5,1e-6\n3,0,1GiB,0.5\n2,3,17,0\n"
STAR = "star:hosts=4,bandwidth=1e9,latency=1e-6"
COLLECTIVES = {
    "l.log": "# nThread 1 nGpus 2 minBytes 8\n#  Rank  0 Group  0 Pid  7 on  host-a device  0 [0x07] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid  7 on  host-a device  1 [0x0a] NVIDIA H100 80GB HBM3\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "     1048576        262144     float     sum      -1    23.11   45.37   45.37      0    22.90   45.79   45.79      0\n"
    "    67108864      16777216     float     sum      -1   327.34  205.01  205.01      0   327.20  205.10  205.10      0\n",
    "j.json": '{"version": 3, "args": ["all_reduce_perf"], "nccl_version": 22807, "config": {"devices": [{"rank": 0, '
    '"hostname": "a", "device_info": "NVIDIA H100"}, {"rank": 1, "hostname": "a", "device_info": "NVIDIA H100"}]}, '
    '"results": [{"size": 1048576, "type": "float", "out_of_place": {"time": 23.1}, "in_place": {"time": 22.9}}]}',
    "i.jsonl": '{"header": {"id": "0x7", "n_ranks": 2, "nnodes": 1}, "coll_perf": {"coll": "AllReduce", "coll_sn": 1, '
    '"coll_msg_size_bytes": 1048576, "coll_exec_time_us": 23}}\n',
    "o.txt": "# OSU MPI Allreduce Latency Test v7.3\n# Size       Avg Latency(us)\n1024              3.2\n1048576          61.5\n",
}
"""Measured collectives in each format."""
ARGUMENTS = (
    "NODES=1\nARGS=(\n --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --bf16\n)\n"
    'torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py "${ARGS[@]}" --micro-batch-size 1 --global-batch-size 16 '
    "--vocab-size 100 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|t|t|tL'\n",
    "  num_layers ...................................... 2\n  hidden_size ..................................... 64\n"
    "  num_attention_heads ............................. 4\n  seq_length ...................................... 32\n"
    "  micro_batch_size ................................ 1\n  padded_vocab_size ............................... 128\n",
    "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n  --num-attention-heads: 4\n  --seq-length: 32\n"
    "  --micro-batch-size: 1\n  --vocab-size: 100\n  --moe-layer-freq: ([0]*1+[1]*1)\n  --num-experts: 4\n",
    "python -m workload_generator.SimAI_training_workload_generator --frame=Megatron --world_size=8 --num_layers 2 "
    "--tensor_model_parallel_size=2 --pipeline_model_parallel=2 --global_batch=8 --seq_length 32 --hidden_size=64 "
    "--num_attention_heads 4 --vocab_size 100 --moe_enable --num_experts 4 --expert_model_parallel_size=2\n",
    "sh scripts/megatron_workload_with_aiob.sh -m 7 --world_size 8 --sp --global_batch 16\n",
)
"""Arguments of Megatron-LM, a script, a log and YAML, and of AICB."""
PARTLY_READ = ("trace", "workload", "fabric", "collectives", "arguments")
"""Kinds whose readers leave out a part of a file, in which a NaN may stand."""
NOT_FINITE = re.compile(rb"""(?<!["'\w.])(NaN|nan|-?inf|-?1e999)(?!["'\w])""")
TRACE = events(count=2)
PLACEMENT = "gpu:0\ngpu:3\n"
WORDS = (
    ["simulate", *SMALL, "--machine", "perlmutter"],
    ["simulate", "--matmul", "60,40,80", "--grid", "x=2,y=2,z=2", "--algorithm", "4d", "--overlap", "oar,ors,oag", "--bands", "2",
     "--passes", "training", "--machine", "selene", "--collectives", "own:ring:1KiB"],
    ["simulate", "--gpt", GPT, "--batch", "8", "--grid", "pipeline=2,data=2,x=2", "--micro-batch", "2", "--zero", "1", "--machine",
     "perlmutter", "--collectives", "nccl", "--recompute", "full", "--steps", "2"],
    ["simulate", "--mlp", "16,32,16", "--batch", "8", "--grid", "z=2", "--machine", "perlmutter", "--learning-rate", "0.1", "--clip", "1"],
    ["simulate", *SMALL, "--machine", "selene", "--set", "device.memory_bytes=80e9", "--degrade",
     "nic:0>*=0.5", "--slow", "gpu:1=0.8", "--routing", "spray", "--placement", "scattered"],
    ["schedule", "--matmul", "64,64,64", "--grid", "x=2,z=2", "--algorithm", "summa", "--panel", "16"],
    ["schedule", "--gpt", GPT, "--batch", "8", "--grid", "x=2", "--scheme", "megatron", "--sequence-parallel"],
    ["collective", "all-reduce", "--bytes", "1MiB", "--gpus", "8", "--machine", "perlmutter", "--collectives", "nccl:ring:Simple"],
    ["collective", "all-gather", "--bytes", "1000", "--dtype", "float32", "--group", "4", "--stride", "2", "--concurrent", "all",
     "--gpus", "8", "--machine", "torus:dims=4x2,bandwidth=1e9,latency=1e-6", "--channels", "2"],
    ["topology", "show", "dragonfly:groups=3,routers=2,hosts_per_router=2,bandwidth=1e9,latency=1e-6"],
    ["topology", "show", "leaf-spine:leaves=2,spines=2,hosts_per_leaf=2,bandwidth=1e9,latency=1e-6"],
    ["topology", "show", "tree:down=2x2,up=1x1,parallel=1x1,bandwidth=1e9,latency=1e-6"],
    ["rank", "--gpt", GPT, "--batch", "8", "--gpus", "4", "--machine", "perlmutter", "--top", "2", "--search", "none"],
    ["sweep", "--matmul", "64,64,64", "--grid", "z=2", "--machine", "perlmutter", "--vary", "grid=x=2;z=2", "--jobs", "1"],
    ["machines", "perlmutter"],
    ["models", "gpt3-175b"],
)  # fmt: skip


@dataclass(frozen=True)
class Input:
    """One command and the files that it reads.

    Parameters
    ----------
    kind : reader, or `words` for the command line itself
    words : arguments of `quadrille`
    files : contents by name, in the folder where the command runs
    tainted : whether a NaN or an infinity was put into a file, all of whose keys are read
    """

    kind: str
    words: tuple[str, ...]
    files: dict[str, bytes]
    tainted: bool = False


class Inputs:
    """Random inputs by number; valid files are made once by the commands themselves.

    Parameters
    ----------
    folder : files that `make_valid_files` wrote
    kinds : kinds that are drawn; all if there are none
    """

    def __init__(self, seed, folder, kinds=()):
        self._seed = seed
        self._content = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        self._kinds = {
            "words": (self.words, 20), "machine": (self.machine, 12), "record": (self.record, 12), "timeline": (self.timeline, 5),
            "topology": (self.topology, 10), "xml": (self.xml, 10), "traffic": (self.traffic, 6), "config": (self.config, 10),
            "experiment": (self.experiment, 5), "placement": (self.placement, 2), "layouts": (self.layouts, 2),
            "checkpoint": (self.checkpoint, 3), "matrix": (self.matrix, 3), "job": (self.job, 8), "log": (self.log, 3),
            "trace": (self.trace, 8), "graph": (self.graph, 6), "workload": (self.workload, 4), "fabric": (self.fabric, 10),
            "collectives": (self.collectives, 8), "arguments": (self.arguments, 6),
        }  # fmt: skip
        self._kinds = {name: self._kinds[name] for name in kinds or self._kinds}

    def __call__(self, number):
        draw = random.Random(f"{self._seed}-{number}")
        names = list(self._kinds)
        (kind,) = draw.choices(names, [self._kinds[name][1] for name in names])
        words, files = self._kinds[kind][0](draw)
        tainted = kind not in PARTLY_READ and any(NOT_FINITE.search(content) for content in files.values())
        return Input(kind, tuple(words), files, tainted)

    def words(self, draw):
        words = list(draw.choice(WORDS))
        for _ in range(draw.randint(1, 2)):
            kind, place = draw.random(), draw.randrange(len(words))
            if place == 0 or len(words) < 2:
                words += self.option(draw, words[0])
            elif kind < 0.7:
                words[place] = mutated_words(draw, words[place]) if not words[place].startswith("--") else words[place]
            elif kind < 0.8:
                del words[place]
            else:
                words += self.option(draw, words[0])
        return [word.replace("\0", "") for word in words], {}

    def option(self, draw, command):
        """A random option of a command with a hostile value."""
        with click.Context(app) as context:
            known = app.get_command(context, command)
            options = [option for option in getattr(known, "params", []) if isinstance(option, click.Option)]
        if not options:
            return []
        option = draw.choice(options)
        name = draw.choice([name for name in option.opts if name.startswith("--")])
        return [name] if option.is_flag else [name, draw.choice(HOSTILE_TEXTS)]

    def tree(self, draw, content, parse, text):
        """A changed file: its tree as a rule, its bytes sometimes."""
        if draw.random() < 0.15:
            return mutated_bytes(draw, content)
        return text(mutated_tree(draw, parse(content))).encode("utf-8", "surrogatepass")

    def machine(self, draw):
        name = draw.choice(["machine_perlmutter.toml", "machine_star.toml"])
        content = self.tree(draw, self._content[name], lambda content: tomllib.loads(content.decode()), toml_text)
        words = draw.choice((["machines", "m.toml"], ["simulate", *SMALL, "--machine", "m.toml"]))
        return words, {"m.toml": content}

    def experiment(self, draw):
        base = {
            "matmul": "64,64,64",
            "grid": "z=2",
            "machine": "perlmutter",
            "repeats": 2,
            "overlap": "oar",
            "bands": 1,
        }
        content = self.tree(draw, toml_text(base).encode(), lambda content: tomllib.loads(content.decode()), toml_text)
        return [draw.choice(("simulate", "schedule")), "e.toml"], {"e.toml": content}

    def record(self, draw):
        name = draw.choice([name for name in self._content if name.startswith("record_")])
        content = self.tree(draw, self._content[name], json.loads, json_text)
        words = draw.choice((["explain", "r.json"], ["compare", "r.json", "s.json"], ["simulate", "--from", "r.json"]))
        return words, {"r.json": content, "s.json": self._content[name]}

    def timeline(self, draw):
        content = self.tree(draw, self._content["timeline.json"], json.loads, json_text)
        words = ["compare", "r.json", "r.json", "--timelines", "t.json", "s.json", "--trace", "out.json"]
        return words, {
            "t.json": content,
            "s.json": self._content["timeline.json"],
            "r.json": self._content["record_matmul.json"],
        }

    def topology(self, draw):
        valid = {key: value for key, value in json.loads(self._content["topology.json"]).items() if key != "provenance"}
        content = self.tree(draw, json.dumps(valid).encode(), json.loads, json_text)
        words = draw.choice(
            (["topology", "show", "t.json"], ["collective", "all-reduce", "--bytes", "1MiB", "--machine", "t.json"])
        )
        return words, {"t.json": content}

    def xml(self, draw):
        text = draw.choice(XML)
        if draw.random() < 0.15:
            content = mutated_bytes(draw, text.encode())
        else:
            root = ET.fromstring(text)
            for _ in range(draw.randint(1, 3)):
                self._change_element(draw, root)
            content = ET.tostring(root, encoding="utf-8")
        words = draw.choice(
            (["topology", "show", "p.xml"], ["collective", "all-reduce", "--bytes", "1MiB", "--machine", "p.xml"])
        )
        return words, {"p.xml": content}

    def _change_element(self, draw, root):
        parents = {child: parent for parent in root.iter() for child in parent}
        element = draw.choice(list(root.iter()))
        kind = draw.random()
        if kind < 0.7 and element.attrib:
            key = draw.choice(list(element.attrib))
            value = mutated_words(draw, element.attrib[key])
            element.attrib[key] = "".join(letter for letter in value if letter >= " ")
        elif kind < 0.8 and element.attrib:
            del element.attrib[draw.choice(list(element.attrib))]
        elif kind < 0.9 and element in parents:
            parents[element].append(element)
        elif element in parents:
            parents[element].remove(element)

    def traffic(self, draw):
        rows = [line.split(",") for line in TRAFFIC.splitlines()]
        for _ in range(draw.randint(1, 3)):
            row = draw.choice(rows)
            if not row or draw.random() < 0.1:
                rows.append(list(draw.choice(rows)))
            elif draw.random() < 0.2:
                row.pop(draw.randrange(len(row)))
            else:
                row[draw.randrange(len(row))] = mutated_words(draw, draw.choice(row))
        content = "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
        content = mutated_bytes(draw, content) if draw.random() < 0.15 else content
        return ["flows", "traffic.csv", "--machine", STAR], {"traffic.csv": content}

    def graph(self, draw):
        if draw.random() < 0.5:
            content = GOAL
            for _ in range(draw.randint(1, 3)):
                content = mutated_words(draw, content)
            content = content.encode("utf-8", "surrogatepass")
            content = mutated_bytes(draw, content) if draw.random() < 0.2 else content
            return ["replay", "g.goal", "--machine", STAR], {"g.goal": content}
        nodes = [ChakraNode(0, "sum", COLLECTIVE, (), 0, {"comm_type": 0, "comm_size": 1 << 20, "pg_name": "1"})]
        traces = [trace_bytes(iter([*nodes, ChakraNode(1, "add", COMPUTE, (0,), 5)])) for _ in range(2)]
        groups = json.dumps({"1": [0, 1]}).encode()
        if draw.random() < 0.3:
            groups = self.tree(draw, groups, json.loads, json_text)
        else:
            traces[0] = mutated_bytes(draw, traces[0])
        words = ["replay", "t.0.et", "t.1.et", "groups.json", "--machine", STAR]
        return words, {"t.0.et": traces[0], "t.1.et": traces[1], "groups.json": groups}

    def workload(self, draw):
        words = draw.choice((["replay", "w.txt", "--machine", STAR], ["import", "job", "w.txt", "--model", GPT]))
        return words, {"w.txt": mutated_lines(draw, SIMAI)}

    def fabric(self, draw):
        content = mutated_lines(draw, FABRICS[draw.choice(list(FABRICS))])
        words = draw.choice((["import", "topology"], ["import"]))
        return [*words, "f.txt", "--bandwidth", "50GB/s", "--out", "out.json"], {"f.txt": content}

    def collectives(self, draw):
        name = draw.choice(list(COLLECTIVES))
        content = COLLECTIVES[name]
        if name.startswith(("j", "i")) and draw.random() < 0.6:
            content = self.tree(draw, content.encode(), json.loads, json_text)
        else:
            content = mutated_lines(draw, content)
        words = draw.choice((["check"], ["import", "machine", "--into", "out.toml"]))
        return [*words, name, "--machine", "h100-node", *draw.choice(([], ["--gpus", "2"]))], {name: content}

    def arguments(self, draw):
        content = mutated_lines(draw, draw.choice(ARGUMENTS))
        words = draw.choice((["import", "job"], ["import"]))
        return [*words, "a.sh", "--gpus", "8", "--approximate"], {"a.sh": content}

    def config(self, draw):
        content = self.tree(draw, json.dumps(draw.choice((CONFIG, GPT2))).encode(), json.loads, json_text)
        words = draw.choice(
            (
                ["schedule", "--gpt", "./c.json", "--batch", "4", "--grid", "x=2"],
                ["simulate", "--gpt", "./c.json", *TRAINING],
            )
        )
        return words, {"c.json": content}

    def placement(self, draw):
        content = (
            mutated_words(draw, PLACEMENT).encode() if draw.random() < 0.7 else mutated_bytes(draw, PLACEMENT.encode())
        )
        return ["simulate", *SMALL, "--machine", "perlmutter", "--placement", "./places.txt"], {"places.txt": content}

    def layouts(self, draw):
        content = self.tree(
            draw, self._content["machine_perlmutter.toml"], lambda content: tomllib.loads(content.decode()), toml_text
        )
        return ["simulate", "--gpt", GPT, *TRAINING, "--gemm-layouts", "./l.toml"], {"l.toml": content}

    def checkpoint(self, draw):
        content = self._content["state.ckpt"]
        (size,) = struct.unpack("<Q", content[:8])
        if draw.random() < 0.3:
            changed = mutated_bytes(draw, content)
        else:
            header = json_text(mutated_tree(draw, json.loads(content[8 : 8 + size]))).encode("utf-8", "surrogatepass")
            changed = struct.pack("<Q", len(header)) + header + content[8 + size :]
        return ["run", "--gpt", GPT, "--batch", "4", "--load", "state.ckpt", "--repeats", "1", "--warmups", "0"], {
            "state.ckpt": changed
        }

    def job(self, draw):
        files = draw.choice(JOBS)
        changed = {
            name: mutated_words(draw, content).encode("utf-8", "surrogatepass")
            if isinstance(content, str)
            else self.tree(draw, json.dumps(content).encode(), json.loads, json_text)
            for name, content in files.items()
        }
        words = [*draw.choice((["job"], [])), *changed, "--gpus", "8", "--approximate"]
        return ["import", *words, *draw.choice(([], ["--model", "llama3-8b"]))], changed

    def log(self, draw):
        content = megatron_log([5000.0, 1100.0, 1200.5])
        for _ in range(draw.randint(1, 3)):
            content = mutated_words(draw, content)
        content = content.encode("utf-8", "surrogatepass")
        content = mutated_bytes(draw, content) if draw.random() < 0.3 else content
        return ["compare", "r.json", "l.log"], {"l.log": content, "r.json": self._content["record_gpt.json"]}

    def matrix(self, draw):
        content = self._content["a.npy"]
        header = content[10:128].decode("latin1")
        if draw.random() < 0.6:
            header = mutated_words(draw, header).encode("latin1", "replace")
            changed = content[:8] + struct.pack("<H", min(65535, len(header))) + header + content[128:]
        else:
            changed = mutated_bytes(draw, content)
        return ["run", "--matmul", "8,8,8", "--a", "a.npy", "--repeats", "1", "--warmups", "0"], {"a.npy": changed}

    def trace(self, draw):
        if draw.random() < 0.2:
            return ["explain", "t.sqlite"], {"t.sqlite": mutated_bytes(draw, self._content["report.sqlite"])}
        content = self.tree(draw, trace_text(TRACE, indent=draw.choice((None, 1))), json.loads, json_text)
        if draw.random() < 0.3:
            content = gzip.compress(content, 1, mtime=0)
            content = mutated_bytes(draw, content) if draw.random() < 0.5 else content
        words = draw.choice(
            (["explain", "t.json"], ["compare", "r.json", "t.json"], ["compare", "r.json", "t.json", "u.json"])
        )
        return words, {
            "t.json": content,
            "u.json": trace_text(TRACE, rank=1),
            "r.json": self._content["record_gpt.json"],
        }


def make_valid_files(folder, run):
    """Write the valid files into a folder.

    Parameters
    ----------
    run : runs `quadrille` with these words in the folder
    """
    run("machines", "perlmutter", "--toml", "machine_perlmutter.toml")
    Path(folder, "machine_star.toml").write_text(
        'schema = "quadrille/machine/1"\nname = "two hosts"\n[topology]\nfamily = "star"\nhosts = 2\n'
        "bandwidth_bytes_per_second = 1e9\nlatency_seconds = 1e-5\n[device]\npeak_flops_per_second = { float32 = 1e11 }\n"
        "memory_bytes_per_second = 2e10\nmemory_bytes = 32e9\noverhead_seconds = 1e-6\n"
    )
    run("simulate", *SMALL, "--machine", "perlmutter", "--json", "record_matmul.json", "--timeline", "timeline.json")
    run("simulate", "--gpt", GPT, *TRAINING, "--json", "record_gpt.json")
    run(
        "collective",
        "all-reduce",
        "--bytes",
        "1MiB",
        "--gpus",
        "8",
        "--machine",
        "perlmutter",
        "--json",
        "record_collective.json",
    )
    run("topology", "show", STAR, "--json", "topology.json")
    write_report(Path(folder, "report.sqlite"))
    run("run", "--gpt", GPT, "--batch", "4", "--save", "state.ckpt", "--repeats", "1", "--warmups", "0")
    run("operands", "--matmul", "8,8,8", "--a", "a.npy", "--b", "b.npy")
