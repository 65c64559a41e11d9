// Measures llama.cpp or ik_llama.cpp (-DIK) through its library as `foretoken bench --json -r 1` measures: prompts, decoding at
// depths, passes over several rows with the logits of all of them at a context of 256. For `foretoken bench --against`.
//
//   c++ -O2 -I SRC/include -I SRC/ggml/include scripts/peer_bench.cpp -L BUILD/bin -lllama -lggml -lggml-base -o peer_bench
//   peer_bench MODEL.gguf THREADS PREFILLS DECODE DEPTHS WIDTHS        (lists with commas)
#include "llama.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static std::vector<int> list(const char * text) {
    std::vector<int> numbers;
    std::stringstream in(text);
    for (std::string part; std::getline(in, part, ',');) numbers.push_back(std::atoi(part.c_str()));
    return numbers;
}

static llama_context * context;
static int vocab;

static void cut(int from) {
#ifdef IK
    llama_kv_cache_seq_rm(context, 0, from, -1);
#else
    llama_memory_seq_rm(llama_get_memory(context), 0, from, -1);
#endif
}

// One pass over `rows` tokens from position `at` on, with logits of the last `wanted`; reads one number of each of these.
static void pass(int at, int rows, int wanted) {
    llama_batch batch = llama_batch_init(rows, 0, 1);
    batch.n_tokens = rows;
    for (int i = 0; i < rows; i++) {
        batch.token[i] = 1000 + (at + i) * 7919 % std::min(vocab - 1000, 20000);
        batch.pos[i] = at + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = i >= rows - wanted;
    }
    if (llama_decode(context, batch) != 0) {
        std::fprintf(stderr, "error: %d rows at %d failed\n", rows, at);
        std::exit(1);
    }
    volatile float sum = 0;
    for (int i = rows - wanted; i < rows; i++) sum = sum + llama_get_logits_ith(context, i)[0];
    llama_batch_free(batch);
}

static void fill(int depth) {
    cut(0);
    for (int at = 0; at < depth; at += 512) pass(at, std::min(512, depth - at), at + 512 >= depth);
}

int main(int count, char ** words) {
    if (count != 7) {
        std::fprintf(stderr, "usage: peer_bench MODEL THREADS PREFILLS DECODE DEPTHS WIDTHS\n");
        return 2;
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    auto how = llama_model_default_params();
#ifdef IK
    how.repack_tensors = true;
    how.use_mmap = false;
#endif
    llama_model * model = llama_model_load_from_file(words[1], how);
    if (!model) {
        std::fprintf(stderr, "error: %s cannot be loaded\n", words[1]);
        return 1;
    }
    auto with = llama_context_default_params();
    auto prefills = list(words[3]), depths = list(words[5]), widths = list(words[6]);
    int decode = std::atoi(words[4]), most = 1024;
    for (int n : prefills) most = std::max(most, n);
    for (int n : depths) most = std::max(most, n + decode + 64);
    with.n_ctx = (most + 255) / 256 * 256;
    with.n_batch = with.n_ubatch = 512;
    with.n_threads = with.n_threads_batch = std::atoi(words[2]);
    context = llama_init_from_model(model, with);
#ifdef IK
    vocab = llama_n_vocab(model);
#else
    vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
#endif
    fill(64);
    std::string out = "{\"prefill\": [";
    auto add = [&](const char * name, int n, const char * unit, double value) {
        if (out.back() != '[') out += ", ";
        out += "{\"" + std::string(name) + "\": " + std::to_string(n) + ", \"" + unit + "\": " + std::to_string(value) + "}";
    };
    for (int n : prefills) {
        cut(0);
        double start = now();
        for (int at = 0; at < n; at += 512) pass(at, std::min(512, n - at), at + 512 >= n);
        add("tokens", n, "tok_s", n / (now() - start));
    }
    out += "], \"decode\": [";
    for (int depth : depths) {
        fill(depth);
        pass(depth, 1, 1);
        double start = now();
        for (int i = 0; i < decode; i++) pass(depth + 1 + i, 1, 1);
        add("depth", depth, "tok_s", decode / (now() - start));
    }
    out += "], \"widths\": [";
    fill(256);
    for (int rows : widths) {
        std::vector<double> times;
        for (int i = 0; i < 7; i++) {
            double start = now();
            pass(256, rows, rows);
            times.push_back(now() - start);
            cut(256);
        }
        std::sort(times.begin(), times.end());
        add("rows", rows, "ms", times[3] * 1e3);
    }
    std::printf("%s]}\n", out.c_str());
}
