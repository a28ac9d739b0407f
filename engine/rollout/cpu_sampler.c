/* A token for each row of logits, drawn from softmax(logits * inverse), and the token's log-probability. Compiled and
 * called by engine/rollout/cpu_sampler.py.
 *
 * The draw is an exponential race, first among blocks of the vocabulary, then within the winner: the i-th with the
 * smallest E_i / weight_i wins, where the E_i are exponential numbers made from the row's key and i. Logits that differ
 * by rounding give another token only where the first two all but tie; inverting the distribution function would at
 * each of its steps. */

#include <float.h>
#include <math.h>
#include <stdint.h>

enum { BLOCK = 1024 };

/* Exponential number i of a key: a mixer of 64 bits (SplitMix64), whose upper 53 are a uniform number. */
static double exponential(uint64_t key, uint64_t i) {
    uint64_t x = key + (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return -log(((x >> 11) + 0.5) * 0x1p-53);
}

static int64_t first_of(const float *line, int64_t width, float inverse, float most) {
    for (int64_t i = 0; i < width; i++)
        if (line[i] * inverse >= most) return i;
    return 0; /* nothing but NaN */
}

static int64_t winning_block(const double *sums, int64_t blocks, uint64_t key) {
    int64_t winner = 0;
    double best = DBL_MAX;
    for (int64_t block = 0; block < blocks; block++) {
        if (!(sums[block] > 0)) continue;
        double time = exponential(key, block) / sums[block];
        if (time < best) best = time, winner = block;
    }
    return winner;
}

static int64_t winning_token(const float *line, int64_t from, int64_t to, float inverse, float most, uint64_t key) {
    int64_t winner = from;
    double best = DBL_MAX;
    for (int64_t i = from; i < to; i++) {
        float weight = expf(line[i] * inverse - most);
        if (!(weight > 0)) continue;
        double time = exponential(~key, i) / weight;
        if (time < best) best = time, winner = i;
    }
    return winner;
}

/* logits: rows of width numbers, stride apart. keys: below 0 the row's most probable token is taken. */
void marlaas_sample(int64_t *tokens, float *logprobs, const float *logits, const float *inverses, const int64_t *keys,
                    int64_t rows, int64_t width, int64_t stride) {
    int64_t blocks = (width + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *line = logits + row * stride;
        float inverse = inverses[row], most = -3.0e38f;
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < width; i++) {
            float value = line[i] * inverse;
            most = value > most ? value : most;
        }
        double sums[blocks], total = 0;
        for (int64_t block = 0; block < blocks; block++) {
            int64_t end = (block + 1) * BLOCK < width ? (block + 1) * BLOCK : width;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = block * BLOCK; i < end; i++) sum += expf(line[i] * inverse - most);
            sums[block] = sum;
            total += sum;
        }
        int64_t token;
        if (keys[row] < 0) {
            token = first_of(line, width, inverse, most);
        } else {
            int64_t from = BLOCK * winning_block(sums, blocks, (uint64_t)keys[row]);
            int64_t to = from + BLOCK < width ? from + BLOCK : width;
            token = winning_token(line, from, to, inverse, most, (uint64_t)keys[row]);
        }
        tokens[row] = token;
        logprobs[row] = line[token] * inverse - most - (float)log(total);
    }
}
