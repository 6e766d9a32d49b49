"""The kinds of recipes: each is a module with `Options`, `check(options)` and `run(options, folder)`.

`Options` is a `mitigate.config.Recipe`; `check` raises `UsageError` for what types can't say (a file that is not
there, an extra that is not installed) and loads nothing heavy; `run` does the work in a `RunFolder`. Importing such a
module imports no model library.
"""

KINDS: dict[str, str] = {
    "build-dataset": "mitigate.kinds.build_dataset",
    "discriminative-annotator": "mitigate.kinds.discriminative_annotator",
    "generative-annotator": "mitigate.kinds.generative_annotator",
    "embedded-annotator": "mitigate.kinds.embedded_annotator",
    "icl": "mitigate.kinds.icl",
    "inference": "mitigate.kinds.inference",
    "mask-dpo": "mitigate.kinds.mask_dpo",
    "rlhf": "mitigate.kinds.rlhf",
    "sft": "mitigate.kinds.sft",
}
"""What `kind:` may say, and the module that it means."""
