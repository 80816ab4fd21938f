/* The floor: the least that a client must do to receive completions and count their tokens. One thread, epoll, recv;
 * an answer is gathered, tested for its end, and looked through once when it is whole, as cm4vllm's client does it.
 *
 *   floor PORT CONNECTIONS QUERIES REQUEST_FILE
 *
 * Sends the request of the file QUERIES times, one at a time over each of CONNECTIONS, and prints: wall time in ns, CPU
 * time in ns, tokens received. Exits with 1 when an answer is not whole or does not have the tokens its usage says.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int fd;
    char *data;
    size_t length, room;
    size_t whole;  /* length of a whole answer, 0 while unknown, -1 when it comes in chunks */
} Stream;

static const char END[] = "data: [DONE]\n\n\r\n0\r\n\r\n";
static char *request;
static size_t request_length;
static long to_send;

static void die(const char *what) { perror(what); exit(1); }

static long ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void ask(Stream *s)
{
    if (to_send == 0) return;
    to_send--;
    s->length = s->whole = 0;
    if (send(s->fd, request, request_length, MSG_NOSIGNAL) != (ssize_t)request_length) die("send");
}

static long number_after(Stream *s, const char *name)
{
    char *at = memmem(s->data, s->length, name, strlen(name));
    return at ? atol(at + strlen(name)) : -1;
}

static long tokens_of(Stream *s)
{
    static const char ids[] = "\"token_ids\":[";
    long count = 0;
    char *end = s->data + s->length;
    for (char *at = s->data; (at = memmem(at, end - at, ids, sizeof ids - 1)); count++) {
        at += sizeof ids - 1;
        while (*at != ']') count += *at++ == ',';
    }
    if (count != number_after(s, "\"completion_tokens\":")) { fputs("the answer does not add up\n", stderr); exit(1); }
    return count;
}

static int is_whole(Stream *s)
{
    if (s->whole == 0) {
        char *end = memmem(s->data, s->length, "\r\n\r\n", 4);
        if (!end) return 0;
        long length = number_after(s, "content-length: ");
        s->whole = length < 0 ? (size_t)-1 : (size_t)(end + 4 - s->data + length);
    }
    if (s->whole != (size_t)-1) return s->length == s->whole;
    return s->length > sizeof END && !memcmp(s->data + s->length - (sizeof END - 1), END, sizeof END - 1);
}

static void receive(Stream *s)
{
    if (s->room - s->length < 65536) {
        s->room = s->length + 131072;
        if (!(s->data = realloc(s->data, s->room))) die("realloc");
    }
    ssize_t n = recv(s->fd, s->data + s->length, s->room - s->length, MSG_DONTWAIT);
    if (n <= 0) die("recv");
    s->length += n;
}

int main(int argc, char **argv)
{
    if (argc != 5) return 2;
    int connections = atoi(argv[2]), epoll = epoll_create1(0), one = 1;
    long queries = to_send = atol(argv[3]), tokens = 0;
    FILE *file = fopen(argv[4], "rb");
    if (!file) die(argv[4]);
    request = malloc(1 << 20);
    request_length = fread(request, 1, 1 << 20, file);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    Stream *streams = calloc(connections, sizeof *streams);
    for (int i = 0; i < connections; i++) {
        streams[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(streams[i].fd, (void *)&to, sizeof to)) die("connect");
        setsockopt(streams[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &streams[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, streams[i].fd, &e)) die("epoll_ctl");
    }
    long wall = ns(CLOCK_MONOTONIC), cpu = ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < connections; i++) ask(&streams[i]);
    for (long done = 0; done < queries;) {
        struct epoll_event events[512];
        int n = epoll_wait(epoll, events, 512, -1);
        for (int i = 0; i < n; i++) {
            Stream *s = events[i].data.ptr;
            receive(s);
            if (!is_whole(s)) continue;
            tokens += tokens_of(s);
            done++;
            ask(s);
        }
    }
    printf("%ld %ld %ld\n", ns(CLOCK_MONOTONIC) - wall, ns(CLOCK_PROCESS_CPUTIME_ID) - cpu, tokens);
    return 0;
}
