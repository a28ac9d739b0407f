/* A token for each row of logits, drawn from softmax(logits * inverse) by inverting its distribution function, and the
 * token's log-probability. Compiled and called by engine/rollout/cpu_sampler.py. */

#include <math.h>
#include <stdint.h>

enum { BLOCK = 1024 };

static int64_t first_of(const float *line, int64_t width, float inverse, float most) {
    for (int64_t i = 0; i < width; i++)
        if (line[i] * inverse >= most) return i;
    return 0; /* nothing but NaN */
}

/* The first token at which the sum of the weights exceeds point; else the last one with any weight. */
static int64_t token_at(const float *line, int64_t width, float inverse, float most, double point) {
    int64_t last = 0;
    double sum = 0;
    for (int64_t i = 0; i < width; i++) {
        float weight = expf(line[i] * inverse - most);
        if (weight > 0) last = i;
        sum += weight;
        if (sum > point) return i;
    }
    return last;
}

/* uniforms: in [0, 1); below 0 the row's most probable token is taken. */
void marlaas_sample(int64_t *tokens, float *logprobs, const float *logits, const float *inverses,
                    const double *uniforms, int64_t rows, int64_t width) {
    int64_t blocks = (width + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *line = logits + row * width;
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
        if (uniforms[row] < 0) {
            token = first_of(line, width, inverse, most);
        } else {
            double point = uniforms[row] * total;
            int64_t block = 0;
            while (block < blocks - 1 && point >= sums[block]) point -= sums[block++];
            int64_t start = block * BLOCK, rest = width - start;
            token = start + token_at(line + start, rest < BLOCK ? rest : BLOCK, inverse, most, point);
        }
        tokens[row] = token;
        logprobs[row] = line[token] * inverse - most - (float)log(total);
    }
}
