"""Training steps that run on a device, real or fake, and agree with the serial run."""

ONE = "layers=1,hidden=12,heads=3,sequence=5,vocabulary=127"


TWO = "layers=2,hidden=12,heads=3,sequence=5,vocabulary=127"


LLAMA = "layers=2,hidden=16,heads=4,sequence=5,vocabulary=127,inner=10,architecture=llama,key_heads=2"


CASES = {
    "layers": {"mlp": "13,7,11,5", "batch": "17", "grid": "z=3,y=2", "dtype": "float32"},
    "layers exactly": {"mlp": "13,7,11,5", "batch": "17", "grid": "z=3,y=2", "dtype": "float64"},
    "layers in 16 bits": {"mlp": "13,7,11,5", "batch": "17", "grid": "z=3,y=2", "dtype": "bfloat16"},
    "4d": {"gpt": TWO, "batch": "4", "grid": "z=2,x=3", "overlap": "oar,ors,oag", "dtype": "bfloat16"},
    "zero 2": {"gpt": ONE, "batch": "4", "grid": "data=2,x=3", "zero": "2", "gradient_bytes": "2", "dtype": "bfloat16"},
    "zero 3": {"gpt": ONE, "batch": "4", "grid": "data=2,y=2", "zero": "3", "dtype": "float32"},
    "optimus": {"gpt": ONE, "batch": "4", "grid": "z=2,x=3", "scheme": "optimus", "dtype": "float64"},
    "bian": {"gpt": "layers=1,hidden=12,heads=4,sequence=4,vocabulary=127", "batch": "4", "grid": "z=2,y=2,x=2",
             "scheme": "bian", "dtype": "float32"},
    "llama": {"gpt": LLAMA, "batch": "4", "grid": "z=2,x=2", "overlap": "oar,ors,oag", "dtype": "float32"},
    "llama in 16 bits": {"gpt": LLAMA, "batch": "4", "grid": "z=2,x=2", "scheme": "optimus", "dtype": "bfloat16"},
    "stages of a llama": {"gpt": LLAMA, "batch": "2", "grid": "pipeline=2,z=2", "micro_batch": "1",
                          "attention": "unfused", "dtype": "float64"},
    "stages": {"gpt": TWO, "batch": "2", "grid": "pipeline=2,z=2", "micro_batch": "1", "clip": "0.1",
               "dtype": "float32"},
    "state on the host": {"gpt": TWO, "batch": "4", "grid": "data=2,x=3", "zero": "1", "offload": "optimizer:100",
                          "clip": "0.1", "dtype": "bfloat16"},
    "adam on the host": {"gpt": TWO, "batch": "4", "grid": "data=2,x=3", "zero": "1", "offload": "optimizer:host:100",
                         "dtype": "bfloat16"},
    "state on the host exactly": {"mlp": "13,7,11,5", "batch": "17", "grid": "data=2", "offload": "optimizer:20",
                                  "dtype": "float64"},
    "made again": {"gpt": ONE, "batch": "2", "grid": "z=2", "recompute": "full", "dtype": "float64"},
    "made again in part": {"gpt": ONE, "batch": "2", "grid": "x=3", "attention": "unfused", "recompute": "selective",
                           "dtype": "float16"},
}  # fmt: skip


MEGATRON = {"gpt": ONE, "batch": "4", "grid": "x=3", "scheme": "megatron", "sequence_parallel": True}
