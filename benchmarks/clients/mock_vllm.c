/* A server that answers /v1/completions byte for byte as vLLM 0.32 does, at a pace that is known: one thread, epoll.
 *
 *   mock_vllm [-u SOCKET] [-n TOKENS] [-t TTFT_US] [-i INTERVAL_US] [-p] [-l MAX_MODEL_LEN] [-s STAMPS]
 *
 * It listens on a free port of 127.0.0.1 (-u: on a Unix socket), prints the port, and ends when its standard input
 * does. Of a request it reads prompt, max_tokens, stream, stream_options.include_usage, stream_interval and
 * return_token_ids; it answers with min(TOKENS, max_tokens) tokens: the k-th is VOCABULARY[(first prompt id + k) %
 * WORDS], of which the i-th id is (i * 7919 + 307) % 128256; fewer than max_tokens end with "stop". Without -t and -i an answer leaves at once, in one piece.
 * With them the first token leaves TTFT_US after the request has arrived, each further one INTERVAL_US after the one
 * before it was due, and a whole answer when its last token would. -p spreads the streams over the interval: the first
 * token of each leaves up to INTERVAL_US later, or a client's streams would all come as close together as it asked.
 *
 * STAMPS gets four int64 for each answer: the times in ns (CLOCK_MONOTONIC) at which the request had arrived, and at
 * which the first and the last token were sent, and the number of tokens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 4096, EVENTS = 512, NEVER = -1 };

typedef struct { char *data; size_t length, room; } Bytes;

typedef struct { int64_t arrived, first, last, tokens; } Stamp;

typedef struct Stream {
    int fd;
    Bytes in, out;            /* what has come of the next request; what the socket would not take yet */
    int blocked;              /* waits until the socket takes more */
    int busy, streamed, ids, usage;
    int64_t tokens, sent, most, interval; /* most: max_tokens; interval: tokens an event, after the first */
    int64_t due;              /* ns */
    uint64_t name;            /* the answer's id */
    unsigned seed;            /* where its tokens begin in the vocabulary */
    Bytes prompt;             /* as a JSON list, without spaces */
    int64_t prompt_tokens;
    Stamp stamp;
    struct Stream *before, *after;
} Stream;

/* Streams in the order in which they are due. Most are added at the end, as one list holds only equal delays. */
typedef struct { Stream *head, *tail; } Queue;

static int64_t tokens = 128, ttft, itl, model_len = 131072;
static int spread;
static char *words[WORDS], *numbers[WORDS];
static Queue firsts, nexts, wholes;
static Stamp *stamps;
static size_t stamp_count, stamp_room;
static int epoll_fd, input_mark, listener_mark;
static uint64_t answers;

static void die(const char *what) { perror(what); exit(1); }

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void put(Bytes *b, const char *data, size_t length)
{
    if (b->length + length + 1 > b->room) {
        b->room = (b->length + length + 1) * 2;
        if (!(b->data = realloc(b->data, b->room))) die("realloc");
    }
    memcpy(b->data + b->length, data, length);
    b->length += length;
    b->data[b->length] = 0;
}

static void say(Bytes *b, const char *text) { put(b, text, strlen(text)); }

static void say_number(Bytes *b, int64_t number)
{
    char text[24];
    put(b, text, snprintf(text, sizeof text, "%lld", (long long)number));
}

static void make_vocabulary(void)
{
    for (int i = 0; i < WORDS; i++) {
        if (asprintf(&words[i], " w%d", i) < 0 || asprintf(&numbers[i], "%d", (i * 7919 + 307) % 128256) < 0) die("asprintf");
    }
}

static void enqueue(Queue *q, Stream *s)
{
    Stream *before = q->tail;
    while (before && before->due > s->due) before = before->before;
    s->before = before;
    s->after = before ? before->after : q->head;
    *(s->after ? &s->after->before : &q->tail) = s;
    *(before ? &before->after : &q->head) = s;
}

static void dequeue(Queue *q, Stream *s)
{
    *(s->before ? &s->before->after : &q->head) = s->after;
    *(s->after ? &s->after->before : &q->tail) = s->before;
    s->before = s->after = NULL;
}

static Queue *queue_of(Stream *s) { return !s->streamed ? &wholes : s->sent ? &nexts : &firsts; }

/* ---- what vLLM says ---- */

static void say_start(Bytes *b, const Stream *s)
{
    char text[160];
    put(b, text, snprintf(text, sizeof text, "{\"id\":\"cmpl-%016llx\",\"object\":\"text_completion\",\"created\":1795232321,"
                          "\"model\":\"mock\",\"choices\":[", (unsigned long long)s->name));
}

static void say_text(Bytes *b, const Stream *s, int64_t from, int64_t to)
{
    say(b, "{\"index\":0,\"text\":\"");
    for (int64_t k = from; k < to; k++) say(b, words[(s->seed + k) % WORDS]);
    say(b, "\",\"logprobs\":null,\"finish_reason\":");
    say(b, to < s->tokens ? "null" : s->tokens < s->most ? "\"stop\"" : "\"length\"");
    say(b, ",\"stop_reason\":null");
}

static void say_ids(Bytes *b, const Stream *s, int64_t from, int64_t to)
{
    if (!s->ids) { say(b, "null"); return; }
    for (int64_t k = from; k < to; k++) {
        say(b, k == from ? "[" : ",");
        say(b, numbers[(s->seed + k) % WORDS]);
    }
    say(b, "]");
}

static void say_prompt(Bytes *b, const Stream *s, int shown)
{
    say(b, "\"prompt_token_ids\":");
    if (shown && s->ids) put(b, s->prompt.data, s->prompt.length); else say(b, "null");
}

static void say_usage(Bytes *b, const Stream *s)
{
    say(b, "\"usage\":{\"prompt_tokens\":"); say_number(b, s->prompt_tokens);
    say(b, ",\"total_tokens\":"); say_number(b, s->prompt_tokens + s->tokens);
    say(b, ",\"completion_tokens\":"); say_number(b, s->tokens);
}

/* uvicorn sends each event as a chunk of its own. */
static void say_chunk(Bytes *b, const Bytes *event)
{
    char head[24];
    put(b, head, snprintf(head, sizeof head, "%zx\r\n", event->length));
    put(b, event->data, event->length);
    say(b, "\r\n");
}

static const char *HEAD = "HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 03:38:40 GMT\r\nserver: uvicorn\r\n";

static void say_stream_head(Bytes *b)
{
    say(b, HEAD);
    say(b, "content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n");
}

/* The next event of a stream; with its last token all that follows. */
static void say_event(Bytes *b, Stream *s)
{
    static Bytes event;
    int64_t to = s->sent ? s->sent + s->interval : 1;
    if (to > s->tokens) to = s->tokens;
    event.length = 0;
    say(&event, "data: ");
    say_start(&event, s);
    say_text(&event, s, s->sent, to);
    say(&event, ",");
    say_prompt(&event, s, s->sent == 0);
    say(&event, ",\"token_ids\":");
    say_ids(&event, s, s->sent, to);
    say(&event, "}]}\n\n");
    say_chunk(b, &event);
    s->sent = to;
    if (to < s->tokens) return;
    if (s->usage) {
        event.length = 0;
        say(&event, "data: ");
        say_start(&event, s);
        say(&event, "],");
        say_usage(&event, s);
        say(&event, "},\"system_fingerprint\":\"vllm-0.32.0-19b6b6b7\"}\n\n");
        say_chunk(b, &event);
    }
    say(b, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
}

static void say_json(Bytes *b, const Bytes *document)
{
    say(b, HEAD);
    say(b, "content-length: "); say_number(b, document->length);
    say(b, "\r\ncontent-type: application/json\r\nvary: Origin\r\n\r\n");
    put(b, document->data, document->length);
}

static void say_whole(Bytes *b, Stream *s)
{
    static Bytes document;
    document.length = 0;
    say_start(&document, s);
    say_text(&document, s, 0, s->tokens);
    say(&document, ",\"token_ids\":");
    say_ids(&document, s, 0, s->tokens);
    say(&document, ",\"prompt_logprobs\":null,");
    say_prompt(&document, s, 1);
    say(&document, ",\"routed_experts\":null}],\"service_tier\":null,\"system_fingerprint\":\"vllm-0.32.0-19b6b6b7\",");
    say_usage(&document, s);
    say(&document, ",\"prompt_tokens_details\":null,\"completion_tokens_details\":null},\"kv_transfer_params\":null,"
                   "\"ec_transfer_params\":null,\"metrics\":null}");
    say_json(b, &document);
    s->sent = s->tokens;
}

static void say_other(Bytes *b, const char *path)
{
    static Bytes document;
    document.length = 0;
    if (!strncmp(path, "/v1/models ", 11)) {
        say(&document, "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1795232321,"
            "\"owned_by\":\"vllm\",\"root\":\"mock\",\"parent\":null,\"max_model_len\":");
        say_number(&document, model_len);
        say(&document, ",\"permission\":[]}]}");
    } else if (!strncmp(path, "/version ", 9)) {
        say(&document, "{\"version\":\"0.32.0\"}");
    } else if (strncmp(path, "/health ", 8)) {
        say(b, "HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\ncontent-type: application/json\r\n\r\n{\"detail\":\"Not Found\"}");
        return;
    }
    say_json(b, &document);
}

/* ---- sockets ---- */

static void flush(Stream *s)
{
    ssize_t n = s->out.length ? send(s->fd, s->out.data, s->out.length, MSG_NOSIGNAL) : 0;
    if (n < 0) {
        if (errno != EAGAIN) s->out.length = 0; /* the reading side sees the end of the connection */
        n = 0;
    }
    memmove(s->out.data, s->out.data + n, s->out.length - n);
    s->out.length -= n;
    if (s->blocked == (s->out.length > 0)) return;
    s->blocked = s->out.length > 0;
    struct epoll_event e = {.events = EPOLLIN | (s->blocked ? EPOLLOUT : 0), .data.ptr = s};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, s->fd, &e);
}

static void finish(Stream *s)
{
    s->stamp.last = now();
    s->stamp.tokens = s->tokens;
    s->busy = 0;
    if (stamp_count == stamp_room) {
        stamp_room = stamp_room ? 2 * stamp_room : 65536;
        if (!(stamps = realloc(stamps, stamp_room * sizeof *stamps))) die("realloc");
    }
    stamps[stamp_count++] = s->stamp;
}

static void step(Stream *s)
{
    int begins = s->sent == 0;
    if (s->streamed) say_event(&s->out, s); else say_whole(&s->out, s);
    flush(s);
    if (begins) s->stamp.first = now();
    if (s->sent == s->tokens) { finish(s); return; }
    int64_t left = s->tokens - s->sent;
    s->due += itl * (left < s->interval ? left : s->interval);
    enqueue(&nexts, s);
}

static const char *field(const char *body, const char *name)
{
    const char *at = strstr(body, name);
    if (!at) return NULL;
    at += strlen(name);
    while (*at == ' ') at++;
    return at;
}

static void read_prompt(Stream *s, const char *at)
{
    s->prompt.length = 0;
    s->prompt_tokens = 1;
    if (!at || *at != '[') { say(&s->prompt, "[1]"); s->seed = 1; return; } /* a text */
    s->seed = strtoul(at + 1, NULL, 10);
    for (; *at; at++) {
        if (*at == ' ') continue;
        s->prompt_tokens += *at == ',';
        put(&s->prompt, at, 1);
        if (*at == ']') break;
    }
}

static void answer(Stream *s, const char *body)
{
    const char *at;
    s->stamp.arrived = now();
    s->sent = 0;
    s->most = (at = field(body, "\"max_tokens\":")) ? (atoll(at) > 0 ? atoll(at) : 1) : tokens;
    s->tokens = s->most < tokens ? s->most : tokens;
    s->interval = (at = field(body, "\"stream_interval\":")) && atoll(at) > 0 ? atoll(at) : 1;
    s->streamed = (at = field(body, "\"stream\":")) && *at == 't';
    s->usage = (at = field(body, "\"include_usage\":")) && *at == 't';
    s->ids = (at = field(body, "\"return_token_ids\":")) && *at == 't';
    read_prompt(s, field(body, "\"prompt\":"));
    s->name = ++answers * 0x9e3779b97f4a7c15ULL;
    s->busy = 1;
    if (s->streamed) say_stream_head(&s->out);
    if (!ttft && !itl) {
        if (s->streamed) while (s->sent < s->tokens) say_event(&s->out, s); else say_whole(&s->out, s);
        flush(s);
        s->stamp.first = now();
        finish(s);
        return;
    }
    if (s->streamed) flush(s); /* uvicorn sends the head before the first event is there */
    s->due = s->stamp.arrived + ttft + (s->streamed ? 0 : itl * (s->tokens - 1));
    if (spread && s->streamed) s->due += (s->name >> 32) * (uint64_t)itl >> 32;
    enqueue(queue_of(s), s);
}

/* Answer the requests that have come whole. */
static void take(Stream *s)
{
    while (!s->busy) {
        char *end = s->in.length ? strstr(s->in.data, "\r\n\r\n") : NULL;
        if (!end) return;
        char *length = strcasestr(s->in.data, "\r\ncontent-length:");
        size_t whole = end + 4 - s->in.data + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
        if (s->in.length < whole) return;
        char *path = strchr(s->in.data, ' ') + 1;
        char after = s->in.data[whole];
        s->in.data[whole] = 0;
        if (!strncmp(path, "/v1/completions ", 16)) {
            answer(s, end + 4);
        } else {
            say_other(&s->out, path);
            flush(s);
        }
        s->in.data[whole] = after;
        memmove(s->in.data, s->in.data + whole, s->in.length - whole + 1);
        s->in.length -= whole;
    }
}

static void drop(Stream *s)
{
    if (s->busy) dequeue(queue_of(s), s);
    close(s->fd);
    free(s->in.data); free(s->out.data); free(s->prompt.data);
    free(s);
}

static void readable(Stream *s)
{
    static char data[1 << 18];
    ssize_t n = recv(s->fd, data, sizeof data, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) { drop(s); return; }
    put(&s->in, data, n);
    take(s);
}

static void accept_all(int listener)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Stream *s = calloc(1, sizeof *s);
        if (!s) die("calloc");
        s->fd = fd;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl");
    }
    if (errno != EAGAIN && errno != ECONNABORTED) die("accept4");
}

static int listen_on(const char *path)
{
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    socklen_t length = sizeof tcp;
    int fd = socket(path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (path) snprintf(local.sun_path, sizeof local.sun_path, "%s", path);
    if (fd < 0 || bind(fd, path ? (void *)&local : (void *)&tcp, path ? sizeof local : sizeof tcp) || listen(fd, 8192)) die("listen");
    if (!path) getsockname(fd, (void *)&tcp, &length);
    printf("%d\n", ntohs(tcp.sin_port));
    fflush(stdout);
    return fd;
}

static int64_t next_due(void)
{
    int64_t due = NEVER;
    Queue *queues[] = {&firsts, &nexts, &wholes};
    for (int i = 0; i < 3; i++) {
        Stream *s = queues[i]->head;
        if (s && (due == NEVER || s->due < due)) due = s->due;
    }
    return due;
}

static void send_due(void)
{
    Queue *queues[] = {&firsts, &nexts, &wholes};
    int64_t until = now();
    for (int i = 0; i < 3; i++) {
        Stream *s;
        while ((s = queues[i]->head) && s->due <= until) { dequeue(queues[i], s); step(s); }
    }
}

static void serve(int listener)
{
    struct epoll_event events[EVENTS];
    for (;;) {
        int64_t due = next_due(), wait = due == NEVER ? 0 : due - now();
        struct timespec t = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
        struct pollfd ready = {.fd = epoll_fd, .events = POLLIN};
        if (due == NEVER || wait > 0) ppoll(&ready, 1, due == NEVER ? NULL : &t, NULL); /* epoll_wait knows only ms */
        int n = epoll_wait(epoll_fd, events, EVENTS, 0);
        for (int i = 0; i < n; i++) {
            Stream *s = events[i].data.ptr;
            if (s == (void *)&input_mark) return;
            if (s == (void *)&listener_mark) { accept_all(listener); continue; }
            if (events[i].events & EPOLLOUT) flush(s);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(s);
        }
        send_due();
    }
}

static void watch(int fd, void *mark)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = mark};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl");
}

int main(int argc, char **argv)
{
    const char *path = NULL, *stamps_path = NULL;
    for (int option; (option = getopt(argc, argv, "u:n:t:i:pl:s:")) != -1;) {
        switch (option) {
        case 'u': path = optarg; break;
        case 'n': tokens = atoll(optarg); break;
        case 't': ttft = atoll(optarg) * 1000; break;
        case 'i': itl = atoll(optarg) * 1000; break;
        case 'p': spread = 1; break;
        case 'l': model_len = atoll(optarg); break;
        case 's': stamps_path = optarg; break;
        default: return 2;
        }
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1UL);
    make_vocabulary();
    if ((epoll_fd = epoll_create1(0)) < 0) die("epoll_create1");
    int listener = listen_on(path);
    watch(listener, &listener_mark);
    watch(STDIN_FILENO, &input_mark);
    serve(listener);
    if (stamps_path) {
        FILE *file = fopen(stamps_path, "wb");
        if (!file || fwrite(stamps, sizeof *stamps, stamp_count, file) != stamp_count || fclose(file)) die(stamps_path);
    }
    return 0;
}
