// Runs a list of transfers in SimGrid: all by themselves, or as ranks that pass messages on in steps.
//
//   driver FILE [SimGrid options]
//
// FILE is text, written by runner.py:
//
//   hosts links transfers steps
//   bandwidth latency                                      one line a link [B/s] [s]
//   source target bytes start count link link ...          one line a transfer
//
// With 0 steps every transfer starts at its start [s].  Else transfer r is what rank r sends in every step: it goes on
// to the next step when what it sends and what it receives have arrived.
//
// Prints JSON: ends of the transfers or of the ranks [s], seconds of wall time that the run took, and with reading and
// building the platform, and peak memory [B].

#include <simgrid/s4u.hpp>

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;
using Clock = std::chrono::steady_clock;

struct Transfer {
  int source, target;
  double bytes, start;
};

static double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

static void pass_on(int rank, int from, double bytes, int steps, double* end) {
  auto* out = sg4::Mailbox::by_name("from " + std::to_string(rank));
  auto* in = sg4::Mailbox::by_name("from " + std::to_string(from));
  static int token;
  for (int step = 0; step < steps; ++step) {
    int* received = nullptr;
    sg4::CommPtr sent = out->put_async(&token, static_cast<uint64_t>(bytes));
    sg4::CommPtr arrived = in->get_async<int>(&received);
    sent->wait();
    arrived->wait();
  }
  *end = sg4::Engine::get_clock();
}

static void send_once(sg4::Host* source, sg4::Host* target, double bytes, double start, double* end) {
  if (start > 0)
    sg4::this_actor::sleep_until(start);
  sg4::CommPtr comm = sg4::Comm::sendto_async(source, target, static_cast<uint64_t>(bytes));
  comm->wait();
  *end = sg4::Engine::get_clock();
}

int main(int argc, char** argv) {
  sg4::Engine engine(&argc, argv);
  std::ifstream file(argc > 1 ? argv[1] : "");
  long hosts, links, transfers;
  int steps;
  if (!(file >> hosts >> links >> transfers >> steps)) {
    std::cerr << "driver: a file with hosts, links, transfers and steps is needed\n";
    return 2;
  }

  auto* zone = sg4::create_full_zone("cluster");
  std::vector<sg4::Host*> host;
  for (long i = 0; i < hosts; ++i)
    host.push_back(zone->create_host("gpu:" + std::to_string(i), 1e9)->seal());
  std::vector<sg4::LinkInRoute> link;
  for (long i = 0; i < links; ++i) {
    double bandwidth, latency;
    file >> bandwidth >> latency;
    link.emplace_back(zone->create_link("link:" + std::to_string(i), bandwidth)->set_latency(latency)->seal());
  }
  std::vector<Transfer> transfer;
  std::map<std::pair<int, int>, bool> routed;
  for (long i = 0; i < transfers; ++i) {
    Transfer one;
    int count;
    file >> one.source >> one.target >> one.bytes >> one.start >> count;
    std::vector<sg4::LinkInRoute> route;
    for (int hop = 0; hop < count; ++hop) {
      int number;
      file >> number;
      route.push_back(link[number]);
    }
    if (routed.emplace(std::make_pair(one.source, one.target), true).second)
      zone->add_route(host[one.source]->get_netpoint(), host[one.target]->get_netpoint(), nullptr, nullptr, route, false);
    transfer.push_back(one);
  }
  if (!file) {
    std::cerr << "driver: the file is truncated\n";
    return 2;
  }
  zone->seal();

  std::vector<double> end(transfers, -1);
  std::vector<int> sender(hosts, -1);
  for (const Transfer& one : transfer)
    sender[one.target] = one.source;
  for (long i = 0; i < transfers; ++i) {
    const Transfer& one = transfer[i];
    const std::string name = "transfer " + std::to_string(i);
    if (steps > 0)
      sg4::Actor::create(name, host[one.source], pass_on, one.source, sender[one.source], one.bytes, steps, &end[i]);
    else
      sg4::Actor::create(name, host[one.source], send_once, host[one.source], host[one.target], one.bytes, one.start,
                         &end[i]);
  }
  const auto ready = Clock::now();
  engine.run();
  const double run = seconds_since(ready);

  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf("{\"finish_s\": [");
  for (long i = 0; i < transfers; ++i)
    std::printf("%s%.17g", i ? ", " : "", end[i]);
  std::printf("], \"run_seconds\": %.6f, \"peak_memory_bytes\": %ld}\n", run,
              1024L * usage.ru_maxrss);
  return 0;
}
